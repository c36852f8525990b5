//! A protocol, as the net sees it. The net owns sockets, input that is not consumed yet, output, and what a client may hold; a
//! [`Door`] turns bytes into requests for the store, and outcomes into bytes. Dispatch is static: a worker serves one type of door, and
//! [`super::either::Either`] makes one of two.
//!
//! ```text
//!   bytes ─► step ─► Client::admit ─► Client::submit ─► the store
//!                                                           │ outcome, in any order
//!   Client::out ◄──────────── complete ◄────────────────────┘
//! ```
//! Invariants, which every door keeps:
//! 1. A door has one number for each request that it submitted and whose outcome has not come; numbers may be used again after that.
//! 2. A door keeps a reply back only while another request of the same client is pending (an order of replies needs no more).
//! 3. A step takes bytes or does some of the door's work, or says why not: the client is blocked, or a frame needs more bytes.
//!
//! A door belongs to one client, and so to one worker's thread. It never blocks, and reads no clock but the context's.

use tapetum::Reply;

use super::connection::Client;
use super::context::Context;
use super::datagrams::Datagrams;
use super::out::Pool;
use crate::store::engine::Session;
use crate::store::errands::Answer;

/// One client's side of a protocol.
pub trait Door: Sized + Send + 'static {
    /// What a listener gives to all of its clients.
    type Options: Send + Sync + 'static;
    /// What a worker keeps for all clients of this protocol together; doors find it at [`Context::door`].
    type PerWorker: Default + Send;
    /// Sockets of this protocol that are not streams; [`super::datagrams::NoDatagrams`] where there are none.
    type Datagrams: Datagrams<Self::PerWorker>;

    /// A client has connected. Where the server speaks first, the greeting goes to `client.out`.
    fn open(options: &Self::Options, client: &mut Client, pool: &mut Pool) -> Self;

    /// The last words for a client that connects while there are too many.
    fn refusal(options: &Self::Options) -> &'static [u8];

    /// Takes requests from the front of `input`, which is not empty unless the door [has work](Door::has_work), and submits them.
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

    /// What the client has asked for and was not sent yet.
    fn load(&self) -> Load;

    /// How many of the pending requests' replies leave before that of request `number`, or are sooner given room.
    fn place_of(&self, number: u32) -> usize;

    /// What request `number`, which is pending, is charged with.
    fn charge_bytes(&self, number: u32) -> usize;

    /// Charges request `number`, which is pending, with `bytes` in place of its charge.
    fn recharge(&mut self, number: u32, bytes: usize);

    /// Whether the next step needs input that has not come. A client that ends its input then has been served.
    fn needs_input(&self) -> bool;

    /// Whether it has requests for the store to submit that need no more input. Steps follow until one stops.
    fn has_work(&self) -> bool {
        false
    }

    /// Whether its last step stopped for no reason but that others should have their turn.
    fn wants_turn(&self) -> bool {
        false
    }

    /// A client that is not [ready](Door::is_ready) so long after it connected is closed; 0 is never.
    const READY_SECONDS: u32 = 0;

    /// Whether the protocol's beginning is over.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether the client only listens to what others do.
    fn is_watching(&self) -> bool {
        false
    }

    /// The last words for a client that is closed because it holds memory and does not move, if the protocol has a way to say
    /// them now. Nothing is pending and nothing is unsent.
    fn stalled(&self) -> &'static [u8];

    /// Brings nearer what the inputs of several clients, at most a report of [`crate::os::Epoll`], ask for. A hint.
    fn fetch_ahead<'a, S: Session>(
        _per_worker: &mut Self::PerWorker,
        _inputs: impl Iterator<Item = (&'a Self, &'a [u8])> + Clone,
        _session: &S,
    ) {
    }
}

/// How far a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes were taken, and the next step may follow at once.
    Took(usize),
    /// So many bytes were taken. The rest waits: the client is blocked, or more bytes must come first.
    Stop(usize),
}

/// A client's requests that are not answered in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests without an outcome.
    pub pending: usize,
    /// Memory of the pending requests, by their charges, and of what is kept back until it can be sent.
    pub held_bytes: usize,
}
