//! Requests that ask before a long value is brought: see [`tapetum_base::session::asks`].

use super::{Busy, Session};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::request::{Outcome, Request};
use tapetum_base::session::asks::Ask;
use tapetum_base::session::engine_session::EngineSlot;

impl Session {
    /// As [`Session::submit_to`]. A request that shows a longer value, or makes a value of a long one, asks before that value is brought: see
    /// [`Session::take_asks`]. No other request in flight may have its token.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn submit_within(
        &mut self,
        keyspace: KeyspaceRef,
        token: u64,
        request: Request<'_>,
        value_bytes: usize,
    ) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy);
        }
        self.start(keyspace, token, &request, value_bytes);
        Ok(())
    }

    /// Appends the requests that have asked since. Each waits for [`Session::allow_value`] or [`Session::give_up_value`], and is not replied to
    /// before. It has done nothing, and keeps no other waiting.
    pub fn take_asks(&mut self, asks: &mut Vec<Ask>) {
        if !self.core.is_here() {
            return;
        }
        self.core.asks.take_new(asks);
    }

    /// Lets a request that asks bring a value of up to `value_bytes`: it goes on as if it was submitted now. If its item is longer by then, it asks
    /// again.
    ///
    /// # Panics
    /// If no request with this token asks.
    pub fn allow_value(&mut self, token: u64, value_bytes: usize) {
        if !self.core.is_here() {
            return;
        }
        match self.core.asks.take(token) {
            (EngineSlot::HASHED, number) => self.hashed.allow_value(number, value_bytes),
            (slot, number) => self.others.get(slot).allow_value(&mut self.core, number, value_bytes),
        }
    }

    /// Ends a request that asks: it is replied to as if there was no item.
    ///
    /// # Panics
    /// If no request with this token asks.
    pub fn give_up_value(&mut self, token: u64) {
        if !self.core.is_here() {
            return;
        }
        let operation = self.core.asks.take(token);
        self.core.answer(token, Outcome::Missing);
        match operation {
            (EngineSlot::HASHED, number) => self.hashed.give_up_value(number),
            (slot, number) => self.others.get(slot).give_up_value(number),
        }
    }
}
