//! A toy engine's part of a session. Each operation reads a page of flash first, as if its item lay there, and is decided when that has
//! come: so it shows what an engine needs of a session, and needs nothing of the hashed one.

use crate::engine_tests::toy_engine::{ToyEngine, ToyState};
use std::sync::{Arc, MutexGuard};
use tapetum_base::engine::batch::{BatchPart, BatchStop, Write};
use tapetum_base::engine::engine_session::{EngineSession, EngineSlot, EngineWait};
use tapetum_base::error::Error;
use tapetum_base::keyspace::decide::{Current, Decision, NewValue, decide};
use tapetum_base::keyspace::item::{Access, ItemHead};
use tapetum_base::keyspace::request::{Outcome, Request};
use tapetum_base::log::Draft;
use tapetum_base::media::io::lock;
use tapetum_base::session::asks::Ask;
use tapetum_base::session::order::{Op, OpTarget, Operations, closed};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::{Command, Operation, Purpose, Returned};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::{Codec, Header, Marks, Record};

const PAGE_BYTES: usize = 4096;

pub struct ToySession {
    toy: Arc<ToyEngine>,
    slot: EngineSlot,
    ops: Operations<()>,
}

impl ToySession {
    pub fn new(toy: Arc<ToyEngine>, slot: EngineSlot) -> ToySession {
        ToySession { toy, slot, ops: Operations::default() }
    }

    /// Reads the page of an operation.
    fn attempt(&mut self, core: &mut SessionCore, number: usize, op: Box<Op<()>>) {
        let Some(buffer) = core.spare_buffers.take(PAGE_BYTES) else { return self.ops.wait_again(number, op) };
        let read = Operation::Read { flash: 0, local: buffer.offset(), length: PAGE_BYTES as u32 };
        let command = Command::new(self.slot.tag(number as u64), read).of(Purpose::Get);
        match core.queue.submit(command, buffer.into()) {
            Ok(()) => self.ops.put(number, op),
            Err(full) => {
                core.spare_buffers.give(full.lease.into_buffer());
                self.ops.wait_again(number, op);
            }
        }
    }

    /// Decides an operation whose page has come.
    fn decide(&mut self, core: &mut SessionCore, number: usize, op: Box<Op<()>>) {
        let (request, target) = (op.request.borrow(), op.target());
        let found = self.toy.look_up(target.keyspace, request.key());
        let item = found.as_ref().map(|(stamp, value)| ItemHead {
            flags: 0,
            expiry: Expiry::NONE,
            stamp: *stamp,
            value_bytes: value.len(),
            marks: Marks::NONE,
        });
        let (stamp, value) = found.unwrap_or_default();
        if op.must_ask_for(value.len()) {
            core.asks.add(Ask { token: target.token, value_bytes: value.len() }, (self.slot, number));
            return self.ops.step_aside(number, op);
        }
        let current = item.map(|item| Current::new(item, Access::default(), &value));
        let (written, answer) = match decide(&request, current) {
            Decision::Answer(outcome) => return self.end(core, number, op, (stamp, outcome)),
            Decision::Show => {
                let value = core.values.add(&value);
                return self.end(
                    core,
                    number,
                    op,
                    (stamp, Outcome::Value { flags: 0, stamp, expiry: Expiry::NONE, value }),
                );
            }
            Decision::Delete => (None, None),
            Decision::Store { value: NewValue::Same, answer, .. } => (Some(value.clone()), Some(answer)),
            Decision::Store { value: NewValue::Made(made), answer, .. } => (Some(made), Some(answer)),
            Decision::Store { value: NewValue::Given, answer, .. } => {
                let Request::Put { value, .. } = request else { unreachable!("only a put gives a value") };
                (Some(value.to_vec()), Some(answer))
            }
        };
        match self.toy.write(target.keyspace, request.key(), written.as_deref()) {
            Ok(Some(stamp)) => {
                let item = ItemHead { flags: 0, expiry: Expiry::NONE, stamp, value_bytes: 0, marks: Marks::NONE };
                let shown = core.values.add(&value);
                let outcome = answer.map_or(Outcome::Deleted, |answer| answer.outcome(item, shown));
                self.end(core, number, op, (stamp, outcome));
            }
            Ok(None) => self.ops.wait_again(number, op),
            Err(error) => self.end(core, number, op, (0, Outcome::Failed(error))),
        }
    }

    /// Answers when the record with this stamp is durable.
    fn end(&mut self, core: &mut SessionCore, number: usize, op: Box<Op<()>>, (stamp, outcome): (u64, Outcome)) {
        core.answer_after(op.token, stamp, outcome);
        self.ops.forget(number, op);
    }
}

impl EngineSession for ToySession {
    fn start(&mut self, core: &mut SessionCore, target: OpTarget, request: &Request<'_>) {
        if matches!(request, Request::DeleteAll { .. } | Request::GetAndLease { .. }) {
            return core.answer(target.token, Outcome::Failed(Error::Options("a toy does not do this".into())));
        }
        if self.ops.must_wait(target.hash, request) {
            return self.ops.wait(target, request);
        }
        let (number, op) = self.ops.keep_at_hand(target, request);
        self.attempt(core, number, op);
    }

    fn complete(&mut self, core: &mut SessionCore, Returned { completion, lease }: Returned) {
        core.spare_buffers.give(lease.into_buffer());
        let number = EngineSlot::own(completion.tag) as usize;
        let op = self.ops.take(number);
        if completion.is_success() {
            return self.decide(core, number, op);
        }
        let error = Error::of_command(&core.base.drive, "read of the toy", &completion);
        self.end(core, number, op, (0, Outcome::Failed(error)));
    }

    fn poll(&mut self, core: &mut SessionCore) {
        for _ in 0..self.ops.begin_attempts() {
            let Some((number, op)) = self.ops.take_waiting() else { return };
            self.attempt(core, number, op);
        }
    }

    fn fail_waiting(&mut self, core: &mut SessionCore) {
        while let Some((number, op)) = self.ops.take_waiting() {
            self.end(core, number, op, (0, Outcome::Failed(closed())));
        }
    }

    fn waits(&self) -> EngineWait {
        self.ops.waits()
    }

    fn tokens(&self) -> Vec<u64> {
        self.ops.tokens().collect()
    }

    fn in_flight(&self) -> usize {
        self.ops.count()
    }

    fn kept_bytes(&self) -> usize {
        self.ops.kept_bytes()
    }

    fn allow_value(&mut self, core: &mut SessionCore, number: usize, value_bytes: usize) {
        let mut op = self.ops.take(number);
        op.value_bytes_allowed = value_bytes;
        let (hash, waits) = (op.hash, self.ops.must_wait(op.hash, &op.request.borrow()));
        self.ops.enter(number, op);
        if waits {
            return self.ops.wait_for_turn(hash, number);
        }
        let op = self.ops.take(number);
        self.attempt(core, number, op);
    }

    fn give_up_value(&mut self, number: usize) {
        let op = self.ops.take(number);
        self.ops.end(number, op);
    }

    fn prepare<'a>(
        &'a mut self,
        _: &'a SessionCore,
        writes: &'a [Write<'a>],
    ) -> Result<Box<dyn BatchPart + 'a>, BatchStop> {
        let hash = |write: &Write<'_>| self.toy.base.hasher.hash(write.keyspace().id, write.key());
        if writes.iter().any(|write| self.ops.has_undecided(hash(write))) {
            return Err(BatchStop::Busy);
        }
        Ok(Box::new(ToyBatch { toy: &self.toy, writes, state: None }))
    }
}

struct ToyBatch<'a> {
    toy: &'a ToyEngine,
    writes: &'a [Write<'a>],
    state: Option<MutexGuard<'a, ToyState>>,
}

impl BatchPart for ToyBatch<'_> {
    fn lock(&mut self) -> Result<(), BatchStop> {
        self.state = Some(lock(&self.toy.state));
        Ok(())
    }

    fn add_drafts<'a>(&'a self, drafts: &mut Vec<Draft<'a>>) {
        drafts.extend(self.writes.iter().map(|write| write.draft(Codec::Raw, write.value())));
    }

    fn appended(&mut self, records: &[(u64, u32)]) {
        let Some(state) = &mut self.state else { unreachable!("it was locked") };
        for (write, (stamp, _)) in self.writes.iter().zip(records) {
            let draft = write.draft(Codec::Raw, write.value());
            state.take(&Record {
                header: Header { stamp: *stamp, ..draft.header },
                key: draft.key,
                stored: draft.stored,
            });
        }
    }
}
