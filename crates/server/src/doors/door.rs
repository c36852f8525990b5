//! One client's side of its protocol. A server has two protocols, and each client speaks the one of its listener.
//!
//! ```text
//!   bytes ─► step ─► Client::admit ─► Client::submit ─► the store
//!                                                           │ outcome, in any order
//!   Client::out ◄──────────── complete ◄────────────────────┘
//! ```
//! Invariants of every door:
//! 1. A door gives each submitted request a number that is unique until its outcome has come.
//! 2. A door delays a reply only while another request of the same client is pending (an order of replies needs no more).
//! 3. A step takes bytes or does some of the door's work, or says why not: the client is blocked, or a frame needs more bytes.
//!
//! A door belongs to one client, and so to one worker's thread. It never blocks, and reads no clock except the context's.

use tapetum::{Reply, Session};

use super::connection::Client;
use super::context::Context;
use super::memcached::pipeline::Pipeline;
use super::memcached::{Memcached, MemcachedOptions};
use super::nbd::{Nbd, NbdOptions};
use super::open_keyspaces::OpenKeyspaces;
use crate::net::out::Pool;
use crate::store::errands::Answer;
use crate::store::store_slot::Seat;

/// Not boxed: each get would dereference once more.
#[allow(clippy::large_enum_variant)]
pub enum Door {
    Memcached(Memcached),
    Nbd(Nbd),
}

/// The options of a listener, for all of its clients.
#[derive(Clone)]
pub enum DoorOptions {
    Memcached(MemcachedOptions),
    Nbd(NbdOptions),
}

/// Calls a method of whichever it is.
macro_rules! each {
    ($door:expr, $inner:ident => $call:expr) => {
        match $door {
            Door::Memcached($inner) => $call,
            Door::Nbd($inner) => $call,
        }
    };
}

impl Door {
    /// A client has connected. If the server speaks first, the greeting goes to `client.out`.
    pub fn open(options: &DoorOptions, client: &mut Client, pool: &mut Pool) -> Door {
        match options {
            DoorOptions::Memcached(options) => Door::Memcached(Memcached::new(options.clone())),
            DoorOptions::Nbd(options) => Door::Nbd(Nbd::open(options, client, pool)),
        }
    }

    /// Takes requests from the front of `input` and submits them. `input` is not empty unless the door [has work](Door::has_work).
    pub fn step(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Step {
        each!(self, door => door.step(input, client, cx))
    }

    /// The outcome of request `number` has come.
    pub fn complete(&mut self, number: u32, reply: &Reply, client: &mut Client, cx: &mut Context<'_>) {
        each!(self, door => door.complete(number, reply, client, cx));
    }

    /// The errand that is request `number` is done.
    pub fn complete_errand(&mut self, number: u32, answer: Answer, client: &mut Client, pool: &mut Pool) {
        match self {
            Door::Memcached(door) => door.complete_errand(number, answer, client, pool),
            Door::Nbd(_) => unreachable!("it sends no errands"),
        }
    }

    /// The client's requests that are not answered and sent yet.
    pub fn load(&self) -> Load {
        each!(self, door => door.load())
    }

    /// How many of the pending requests reply before request `number`, or get room sooner.
    pub fn place_of(&self, number: u32) -> usize {
        match self {
            Door::Memcached(door) => door.slots.place_of(number),
            // Replies have no order.
            Door::Nbd(_) => 0,
        }
    }

    /// The charge of request `number`, which is pending.
    pub fn charge_bytes(&self, number: u32) -> usize {
        match self {
            Door::Memcached(door) => door.slots.charge_bytes(number),
            Door::Nbd(door) => door.charge_bytes(number),
        }
    }

    /// Replaces the charge of request `number`, which is pending.
    pub fn recharge(&mut self, number: u32, bytes: usize) {
        match self {
            Door::Memcached(door) => door.slots.charge(number, bytes),
            Door::Nbd(door) => door.recharge(number, bytes),
        }
    }

    /// Whether the next step needs input that has not come. A client that ends its input in this state has been served completely.
    pub fn needs_input(&self) -> bool {
        each!(self, door => door.needs_input())
    }

    /// Whether it has requests for the store to submit that need no more input. Steps follow until one of them stops.
    pub fn has_work(&self) -> bool {
        each!(self, door => door.has_work())
    }

    /// Whether its last step stopped only to give others their turn.
    pub fn wants_turn(&self) -> bool {
        matches!(self, Door::Nbd(door) if door.wants_turn())
    }

    /// A client that is still in the protocol's beginning so long after it connected is closed.
    pub fn ready_seconds(&self) -> Option<u32> {
        matches!(self, Door::Nbd(door) if !door.is_ready()).then_some(Nbd::READY_SECONDS)
    }

    /// Whether the client only watches what others do.
    pub fn is_watching(&self) -> bool {
        matches!(self, Door::Memcached(door) if door.watching.is_some())
    }

    /// The message to a client that is closed because it holds memory and makes no progress, if the protocol allows one now. Nothing is
    /// pending and nothing is unsent.
    pub fn stalled(&self) -> &'static [u8] {
        match self {
            Door::Memcached(door) => door.stalled(),
            Door::Nbd(_) => b"",
        }
    }

    /// The store's keyspaces have changed. Requests that were submitted before keep theirs.
    pub fn follow(&mut self, open: &OpenKeyspaces) {
        match self {
            Door::Memcached(door) => door.options.follow(open),
            Door::Nbd(door) => door.follow(open),
        }
    }

    /// Prefetches for the inputs of several clients, at most a report of [`crate::os::Epoll`]. A hint.
    pub fn fetch_ahead<'a>(pipeline: &mut Pipeline, inputs: impl Iterator<Item = (&'a Door, &'a [u8])>, seat: &Seat) {
        let Some(session) = seat.session() else { return };
        let inputs = inputs.filter_map(|(door, input)| match door {
            Door::Memcached(door) => Some((door.options.keyspace, input)),
            Door::Nbd(_) => None,
        });
        pipeline.fetch_ahead(inputs, session);
    }
}

impl DoorOptions {
    /// The store's keyspaces have changed: clients that connect from now on see that.
    pub fn follow(&mut self, open: &OpenKeyspaces, session: &Session) {
        match self {
            DoorOptions::Memcached(options) => options.follow(open),
            DoorOptions::Nbd(options) => options.exports.follow(|| session.open_keyspaces()),
        }
    }

    /// The message to a client that connects while there are too many.
    pub fn refusal(&self) -> &'static [u8] {
        match self {
            DoorOptions::Memcached(_) => b"ERROR Too many open connections\r\n",
            DoorOptions::Nbd(_) => b"",
        }
    }

    /// Whether clients must get over the protocol's beginning in time: see [`Door::ready_seconds`].
    pub fn has_beginning(&self) -> bool {
        matches!(self, DoorOptions::Nbd(_))
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Took this many bytes; the next step may follow at once.
    Took(usize),
    /// Took this many bytes. The rest waits: the client is blocked, or more bytes must come first.
    Stop(usize),
}

/// A client's requests that are not completely answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests without an outcome.
    pub pending: usize,
    /// Memory of the pending requests, by their charges, and of delayed replies.
    pub held_bytes: usize,
}
