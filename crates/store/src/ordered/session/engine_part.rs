//! The ordered engine's part of a session as the session knows it.

use super::OrderedSession;
use crate::error::Error;
use crate::keyspace::request::Request;
use crate::session::batch::{BatchPart, BatchStop, Write};
use crate::session::engine_session::{EngineSession, EngineWait};
use crate::session::order::OpTarget;
use crate::session::session_core::SessionCore;
use std::os::fd::RawFd;
use tapetum_drive::Returned;

impl EngineSession for OrderedSession {
    fn start(&mut self, core: &mut SessionCore, target: OpTarget, request: &Request<'_>) {
        OrderedSession::start(self, core, target, request);
    }

    fn complete(&mut self, core: &mut SessionCore, returned: Returned) {
        OrderedSession::complete(self, core, returned);
    }

    fn poll(&mut self, core: &mut SessionCore) {
        OrderedSession::poll(self, core);
    }

    fn fail_waiting(&mut self, core: &mut SessionCore) {
        OrderedSession::fail_waiting(self, core);
    }

    fn leave(&mut self, core: &mut SessionCore) {
        OrderedSession::leave(self, core);
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.state.write_back.event_fd()
    }

    fn waits(&self) -> EngineWait {
        OrderedSession::waits(self)
    }

    fn tokens(&self) -> Vec<u64> {
        OrderedSession::tokens(self)
    }

    fn in_flight(&self) -> usize {
        OrderedSession::in_flight(self)
    }

    fn kept_bytes(&self) -> usize {
        OrderedSession::kept_bytes(self)
    }

    fn allow_value(&mut self, _: &mut SessionCore, number: usize, value_bytes: usize) {
        let mut op = self.ops.take(number);
        op.value_bytes_allowed = value_bytes;
        let hash = op.hash;
        self.ops.enter(number, op);
        self.ops.wait_for_turn(hash, number);
    }

    fn give_up_value(&mut self, number: usize) {
        let op = self.ops.take(number);
        self.ops.end(number, op);
    }

    fn prepare<'a>(&'a mut self, _: &'a [Write<'a>]) -> Result<Box<dyn BatchPart + 'a>, BatchStop> {
        let why = "a batch holds writes of hashed keyspaces alone: write keys of ordered ones by themselves";
        Err(BatchStop::Refused(Error::Options(why.into())))
    }
}
