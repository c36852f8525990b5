//! Gets that ask before they bring their values (`tapetum::Session::take_asks`): a value that is longer than the charge of its get comes
//! when there is room for it. Without this, a client that got small values and then many large ones at once would make the server hold all
//! of them, beyond the budget.
//!
//! Replies leave in an order (`Door::place_of`), so room is given in that order. The first of all may take the budget's overdraft; the
//! others only what is left of the budget and of the connection's own limit. A value so small that every connection may hold it comes at
//! once. While a get waits, no more input is taken. A get that asks takes effect when it is allowed, so a door submits no request that
//! would change its item before it is answered. An append to a long value asks in the same way, for that value and the new one; no request of its
//! item is submitted before it is answered.

use super::client::{REQUEST_BYTES, WantedFor};
use super::{Client, Connection};
use crate::doors::context::Context;
use crate::net::gets::Gets;
use crate::net::limits::FREE_BYTES;

/// The longest value that comes without asking: within what every connection may hold.
pub const TRIED_BYTES: usize = FREE_BYTES / 2;

/// A get that asks and has no answer yet.
pub struct AskedValue {
    /// Its request's number.
    pub(in crate::doors) number: u32,
    value_bytes: usize,
}

impl Client {
    /// Whether gets wait for room for their values.
    pub fn asks(&self) -> bool {
        !self.asked.is_empty()
    }
}

impl Connection {
    /// The get that is request `number` asks.
    pub fn ask(&mut self, number: u32, value_bytes: usize, cx: &mut Context<'_>) {
        let place = self.door.place_of(number);
        self.client.has_asked = true;
        let asked = &mut self.client.asked;
        let at = asked.partition_point(|asked| self.door.place_of(asked.number) < place);
        asked.insert(at, AskedValue { number, value_bytes });
        cx.gets.put_aside(self.door.charge_bytes(number));
        self.allow_asked(cx);
    }

    /// Lets gets go on that asked, as far as there is room; all are given up when there is nobody to send to.
    pub fn allow_asked(&mut self, cx: &mut Context<'_>) {
        while let Some(&AskedValue { number, value_bytes }) = self.client.asked.first() {
            if self.client.gone {
                self.give_up_asked(cx);
                return;
            }
            let charge_bytes = self.door.charge_bytes(number);
            let more_bytes = (value_bytes + REQUEST_BYTES).saturating_sub(charge_bytes);
            if !self.may_bring(number, more_bytes, cx) {
                return;
            }
            self.client.asked.remove(0);
            cx.gets.submitted(charge_bytes + more_bytes);
            self.door.recharge(number, charge_bytes + more_bytes);
            self.client.charge(self.client.charged_bytes + more_bytes, cx.budget);
            cx.seat.allow_value(self.client.token(number), value_bytes);
        }
    }

    /// Whether request `number` may hold `more_bytes` more; if not, it waits.
    fn may_bring(&mut self, number: u32, more_bytes: usize, cx: &Context<'_>) -> bool {
        let client = &mut self.client;
        let held_bytes = client.held_bytes(self.door.load()) + more_bytes;
        if held_bytes <= FREE_BYTES {
            return true;
        }
        if self.door.place_of(number) == 0 && client.out.is_empty() {
            return client.may_take(more_bytes, WantedFor::Bytes, cx.budget);
        }
        let is_room = held_bytes <= cx.limits.connection_in_flight_bytes && cx.budget.has(more_bytes);
        // The reply before it will go on, and the connection is looked after then.
        client.blocked |= !is_room;
        is_room
    }

    /// The session that read the values is gone: each get is answered as if it had not asked.
    pub fn stop_asking(&mut self, gets: &mut Gets) {
        let asked = std::mem::take(&mut self.client.asked);
        if !asked.is_empty() {
            self.client.wait = None;
        }
        for AskedValue { number, .. } in asked {
            gets.submitted(self.door.charge_bytes(number));
        }
    }

    /// Gives up the gets that wait for room: each is answered with a miss. Whether there were any.
    pub fn give_up_asked(&mut self, cx: &mut Context<'_>) -> bool {
        let asked = std::mem::take(&mut self.client.asked);
        for &AskedValue { number, .. } in &asked {
            cx.gets.submitted(self.door.charge_bytes(number));
            cx.seat.give_up_value(self.client.token(number));
        }
        self.client.wait = None;
        !asked.is_empty()
    }
}
