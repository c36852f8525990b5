//! The interface between a protocol and the net. The net owns sockets, unconsumed input, output, and the limits of a client. A [`Door`]
//! turns bytes into requests for the store, and outcomes into bytes. Dispatch is static: a worker serves one type of door, and
//! [`super::either::Either`] combines two.
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

use tapetum::Reply;

use super::connection::Client;
use super::context::Context;
use super::datagrams::Datagrams;
use super::out::Pool;
use crate::store::engine::Session;
use crate::store::errands::Answer;

/// One client's side of a protocol.
pub trait Door: Sized + Send + 'static {
    /// Options of a listener, for all of its clients.
    type Options: Send + Sync + 'static;
    /// State of a worker for all clients of this protocol; doors find it at [`Context::door`].
    type PerWorker: Default + Send;
    /// Sockets of this protocol that are not streams; [`super::datagrams::NoDatagrams`] if there are none.
    type Datagrams: Datagrams<Self::PerWorker>;

    /// A client has connected. If the server speaks first, the greeting goes to `client.out`.
    fn open(options: &Self::Options, client: &mut Client, pool: &mut Pool) -> Self;

    /// The message to a client that connects while there are too many.
    fn refusal(options: &Self::Options) -> &'static [u8];

    /// Takes requests from the front of `input` and submits them. `input` is not empty unless the door [has work](Door::has_work).
    fn step<S: Session>(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_, S, Self::PerWorker>)
    -> Step;

    /// The outcome of request `number` has come.
    fn complete<S: Session>(
        &mut self,
        number: u32,
        reply: &Reply,
        client: &mut Client,
        cx: &mut Context<'_, S, Self::PerWorker>,
    );

    /// The errand that is request `number` is done.
    fn complete_errand(&mut self, number: u32, answer: Answer, client: &mut Client, pool: &mut Pool);

    /// The client's requests that are not answered and sent yet.
    fn load(&self) -> Load;

    /// How many of the pending requests reply before request `number`, or get room sooner.
    fn place_of(&self, number: u32) -> usize;

    /// The charge of request `number`, which is pending.
    fn charge_bytes(&self, number: u32) -> usize;

    /// Replaces the charge of request `number`, which is pending.
    fn recharge(&mut self, number: u32, bytes: usize);

    /// Whether the next step needs input that has not come. A client that ends its input in this state has been served completely.
    fn needs_input(&self) -> bool;

    /// Whether it has requests for the store to submit that need no more input. Steps follow until one of them stops.
    fn has_work(&self) -> bool {
        false
    }

    /// Whether its last step stopped only to give others their turn.
    fn wants_turn(&self) -> bool {
        false
    }

    /// A client that is not [ready](Door::is_ready) so long after it connected is closed; 0 is never.
    const READY_SECONDS: u32 = 0;

    /// Whether the protocol's beginning is over.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether the client only watches what others do.
    fn is_watching(&self) -> bool {
        false
    }

    /// The message to a client that is closed because it holds memory and makes no progress, if the protocol allows one now. Nothing is
    /// pending and nothing is unsent.
    fn stalled(&self) -> &'static [u8];

    /// Prefetches for the inputs of several clients, at most a report of [`crate::os::Epoll`]. A hint.
    fn fetch_ahead<'a, S: Session>(
        _per_worker: &mut Self::PerWorker,
        _inputs: impl Iterator<Item = (&'a Self, &'a [u8])> + Clone,
        _session: &S,
    ) {
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
