//! The ordered engine's part of a session, made when the session first names an ordered keyspace. It makes the keyspace's tree if there is none.

use super::engine::OrderedEngine;
use super::session::{OrderedSession, is_large};
use super::tree::OrderedTree;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::request::key_range::{KeyRange, ScanReply};
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::batch::{BatchPart, BatchStop, Write};
use tapetum_base::session::engine_session::{EngineSession, EngineSlot, EngineWait};
use tapetum_base::session::order::OpTarget;
use tapetum_base::session::session_core::SessionCore;
use tapetum_base::wake::shared_event::SharedEvent;
use tapetum_drive::Returned;
use tapetum_kernels::ordered::extension::REFERENCE_BYTES;

pub struct OrderedPart {
    engine: Arc<OrderedEngine>,
    slot: EngineSlot,
    /// Trees that this session has named.
    known: Vec<Arc<OrderedTree>>,
    /// `Some` once there is a tree.
    session: Option<OrderedSession>,
    /// Replies of scans that could not begin.
    failed: Vec<ScanReply>,
}

impl OrderedPart {
    pub fn new(engine: Arc<OrderedEngine>, slot: EngineSlot) -> OrderedPart {
        OrderedPart { engine, slot, known: Vec::new(), session: None, failed: Vec::new() }
    }

    /// The session, with the keyspace's tree made.
    fn session_for(&mut self, keyspace: KeyspaceId) -> Result<&mut OrderedSession, Error> {
        self.known.retain(|tree| !tree.is_dropped());
        if !self.known.iter().any(|tree| tree.keyspace == keyspace) {
            self.known.push(self.engine.tree(keyspace)?);
        }
        let shared = self.engine.shared().expect("a tree was made");
        Ok(self.session.get_or_insert_with(|| OrderedSession::new(&shared.state, self.slot)))
    }
}

impl EngineSession for OrderedPart {
    fn start(&mut self, core: &mut SessionCore, target: OpTarget, request: &Request<'_>) {
        match self.session_for(target.keyspace.id()) {
            Ok(session) => session.start(core, target, request),
            Err(error) => core.answer(target.token, Outcome::Failed(error)),
        }
    }

    fn complete(&mut self, core: &mut SessionCore, returned: Returned) {
        let Some(session) = &mut self.session else { unreachable!("it has a command on its way") };
        session.complete(core, returned);
    }

    fn send(&mut self, core: &mut SessionCore) {
        if let Some(session) = &mut self.session {
            session.send(core);
        }
    }

    fn poll(&mut self, core: &mut SessionCore) {
        if let Some(session) = &mut self.session {
            session.poll(core);
        }
    }

    fn fail_waiting(&mut self, core: &mut SessionCore) {
        if let Some(session) = &mut self.session {
            session.fail_waiting(core);
        }
    }

    fn leave(&mut self, core: &mut SessionCore) {
        if let Some(session) = &mut self.session {
            session.leave(core);
        }
    }

    fn shared_event(&self) -> Option<&SharedEvent> {
        Some(&self.engine.shared()?.state.write_back.event)
    }

    fn waits(&self) -> EngineWait {
        self.session.as_ref().map_or(EngineWait::Commands, OrderedSession::waits)
    }

    fn tokens(&self) -> Vec<u64> {
        self.session.as_ref().map(OrderedSession::tokens).unwrap_or_default()
    }

    fn in_flight(&self) -> usize {
        self.session.as_ref().map_or(0, OrderedSession::in_flight) + self.failed.len()
    }

    fn kept_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, OrderedSession::kept_bytes)
    }

    fn allow_value(&mut self, _: &mut SessionCore, number: usize, value_bytes: usize) {
        if let Some(session) = &mut self.session {
            session.allow_value(number, value_bytes);
        }
    }

    fn give_up_value(&mut self, number: usize) {
        if let Some(session) = &mut self.session {
            session.give_up_value(number);
        }
    }

    fn start_scan(&mut self, keyspace: KeyspaceRef, token: u64, range: KeyRange, items_max: usize) {
        match self.session_for(keyspace.id()) {
            Ok(session) => session.start_scan(keyspace, token, range, items_max),
            Err(error) => self.failed.push(ScanReply { token, part: Err(error) }),
        }
    }

    fn take_scanned(&mut self, replies: &mut Vec<ScanReply>) {
        replies.append(&mut self.failed);
        if let Some(session) = &mut self.session {
            session.take_scanned(replies);
        }
    }

    fn logged_bytes(&self, write: &Write<'_>) -> usize {
        if is_large(write) { REFERENCE_BYTES } else { write.value().len() }
    }

    fn prepare<'a>(
        &'a mut self,
        core: &SessionCore,
        writes: &'a [Write<'a>],
    ) -> Result<Box<dyn BatchPart + 'a>, BatchStop> {
        for write in writes {
            self.session_for(write.keyspace().id()).map_err(BatchStop::Refused)?;
        }
        let OrderedPart { engine, session: Some(session), .. } = self else { unreachable!("the batch names a tree") };
        Ok(Box::new(session.prepare_batch(core, &engine.batches, writes)?))
    }
}
