//! One client's connection: what it may hold ([`Client`]), and its side of a protocol ([`Door`]). Bytes come and go through a
//! socket ([`Stream`]) or in datagrams ([`super::memcached::udp`]).
//!
//! Input is consumed from its first byte, step by step; bytes that are left (a frame that has not arrived whole, or anything while the
//! client is blocked) stay with the transport that brought them. Owned by one worker.

mod asked;
mod client;
mod stream;
mod tls;

pub use client::{Admission, AnswerRoom, Client, CloseReason};
pub use stream::Stream;
pub use tls::TlsSide;

use tapetum::{Outcome, Reply};

use super::context::Context;
use super::door::{Door, Step};
use crate::net::limits::{Budget, FREE_BYTES};
use crate::net::out::Pool;
use crate::stats::count;
use crate::store::errands::Answer;
use crate::store::failure_log::is_damage;

pub struct Connection {
    pub client: Client,
    pub door: Door,
}

impl Connection {
    /// Takes and submits as much of `input` as it may; how many bytes that was.
    pub fn consume(&mut self, input: &[u8], cx: &mut Context<'_>) -> usize {
        let Connection { client, door } = self;
        if client.asks() {
            (client.blocked, client.capped) = (true, false);
            return 0;
        }
        (client.blocked, client.capped, client.wait) = (false, false, None);
        let mut at = 0;
        while (at < input.len() || door.has_work()) && !client.closing && !client.gone {
            if client.skip_bytes > 0 && at < input.len() {
                let bytes = client.skip_bytes.min(input.len() - at);
                client.skip_bytes -= bytes;
                at += bytes;
                continue;
            }
            if input.len() - at < client.need_bytes && !door.has_work() {
                break;
            }
            match door.step(&input[at..], client, cx) {
                Step::Took(bytes) => at += bytes,
                Step::Stop(bytes) => {
                    at += bytes;
                    break;
                }
            }
        }
        at
    }

    /// The outcome of request `number` has come.
    pub fn complete(&mut self, number: u32, reply: &Reply, cx: &mut Context<'_>) {
        if let Outcome::Failed(error) = &reply.outcome {
            if is_damage(error) {
                count(&cx.counters.store_damaged, 1);
            }
            cx.figures.failure_log.note(error, cx.now, &cx.figures.keyspace_items);
        }
        self.door.complete(number, reply, &mut self.client, cx);
    }

    /// The errand that is request `number` is done.
    pub fn complete_errand(&mut self, number: u32, answer: Answer, pool: &mut Pool) {
        self.door.complete_errand(number, answer, &mut self.client, pool);
    }

    /// How many outcomes the store owes it.
    pub fn pending(&self) -> usize {
        self.door.load().pending
    }

    /// Whether one that waits would get further now, though nothing happened to it.
    pub fn may_go_on(&self, budget: &Budget) -> bool {
        let client = &self.client;
        client.wait.is_none_or(|wait| budget.allows(client.who, wait.bytes)) || client.needs_no_budget(self.door.load())
    }

    /// Charges the budget with what is held now, `input_bytes` of it unread input.
    pub fn settle(&mut self, input_bytes: usize, budget: &Budget) {
        let held_bytes = input_bytes + self.client.held_bytes(self.door.load());
        self.client.charge(held_bytes.saturating_sub(FREE_BYTES), budget);
        // A client within the budget needs the overdraft no more: others may have it.
        if self.client.charged_bytes == 0 || budget.has(0) {
            budget.release_overdraft(self.client.who);
        }
    }
}
