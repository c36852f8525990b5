//! Gets that ask before they bring their values (`tapetum::Session::take_asks`): a value that is longer than its get was charged
//! with comes when there is room for it. Without, a client that asked for small values and then for many large ones at once would
//! be brought all of them, whatever the budget has.
//!
//! Replies leave in the order of the requests, so room is given in that order. The first of all may take the budget's overdraft; the
//! others only what is left of it and of the connection's own limit; what is so little that every connection may hold it comes at
//! once. While one waits, nothing more is taken. What asks takes effect when it is allowed: so what would change its item is not
//! submitted before it is answered.

use tapetum::Request;

use super::{Connection, Context, REQUEST_BYTES, WantedFor};
use crate::net::gets::Gets;
use crate::net::limits::FREE_BYTES;
use crate::store::engine::Session;

/// What a get that is tried brings without asking: within what every connection may hold.
pub const TRIED_BYTES: usize = FREE_BYTES / 2;

/// A get that was not told yet.
pub struct Asked {
    /// Its slot.
    number: u32,
    value_bytes: usize,
}

impl Connection {
    /// Whether a request would find what those before it leave; if not, consuming stops.
    pub fn may_follow(&mut self, request: &Request<'_>) -> bool {
        let overtakes = !request.reads() && self.slots.may_overtake(request.key());
        self.blocked |= overtakes;
        !overtakes
    }

    /// The get of slot `number` asks.
    pub fn ask<S: Session>(&mut self, number: u32, value_bytes: usize, cx: &mut Context<'_, S>) {
        let place = self.slots.place_of(number);
        let at = self.asked.partition_point(|asked| self.slots.place_of(asked.number) < place);
        self.asked.insert(at, Asked { number, value_bytes });
        cx.gets.put_aside(self.slots.charge_bytes(number));
        self.allow_asked(cx);
    }

    /// Whether gets wait for room for their values.
    pub fn asks(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Lets gets go on that asked, as far as there is room; all are given up when there is nobody to send to.
    pub fn allow_asked<S: Session>(&mut self, cx: &mut Context<'_, S>) {
        while let Some(&Asked { number, value_bytes }) = self.asked.first() {
            if self.gone {
                self.give_up_asked(cx);
                return;
            }
            let charge_bytes = self.slots.charge_bytes(number);
            let more_bytes = (value_bytes + REQUEST_BYTES).saturating_sub(charge_bytes);
            if !self.may_bring(number, more_bytes, cx) {
                return;
            }
            self.asked.remove(0);
            cx.gets.submitted(charge_bytes + more_bytes);
            self.slots.charge(number, charge_bytes + more_bytes);
            self.charge(self.charged_bytes + more_bytes, cx.budget);
            cx.session.allow_value(self.token(number), value_bytes);
        }
    }

    /// Whether slot `number` may hold so many bytes more; if not, it waits.
    fn may_bring<S>(&mut self, number: u32, more_bytes: usize, cx: &Context<'_, S>) -> bool {
        let held_bytes = self.slots.held_bytes() + self.out.unsent_bytes() + more_bytes;
        if held_bytes <= FREE_BYTES {
            return true;
        }
        if self.slots.place_of(number) == 0 && self.out.is_empty() {
            return self.may_take(more_bytes, WantedFor::Bytes, cx.budget);
        }
        let is_room = held_bytes <= cx.limits.connection_in_flight_bytes && cx.budget.has(more_bytes);
        // What is before it will go on, and is looked after then.
        self.blocked |= !is_room;
        is_room
    }

    /// The session that gets asked is gone: each is answered as if it had not asked.
    pub fn stop_asking(&mut self, gets: &mut Gets) {
        let asked = std::mem::take(&mut self.asked);
        if !asked.is_empty() {
            self.wait = None;
        }
        for Asked { number, .. } in asked {
            gets.submitted(self.slots.charge_bytes(number));
        }
    }

    /// Gives up what waits for room: it is answered as if it was not there. Whether there was any.
    pub fn give_up_asked<S: Session>(&mut self, cx: &mut Context<'_, S>) -> bool {
        let asked = std::mem::take(&mut self.asked);
        for &Asked { number, .. } in &asked {
            cx.gets.submitted(self.slots.charge_bytes(number));
            cx.session.give_up_value(self.token(number));
        }
        self.wait = None;
        !asked.is_empty()
    }
}
