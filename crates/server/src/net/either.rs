//! Two doors in one server: each client speaks the protocol of the listener that it came through. Nested for more than two. A server
//! of one door pays nothing for it; a step of this one costs a branch.

use std::io;
use std::os::fd::BorrowedFd;

use tapetum::Reply;

use super::connection::Client;
use super::context::Context;
use super::datagrams::Datagrams;
use super::door::{Door, Load, Step};
use super::out::Pool;
use crate::os::Interest;
use crate::store::engine::Session;
use crate::store::errands::Answer;

/// A door, or the options of a listener, of one of two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    First(A),
    Second(B),
}

/// Calls a method on whichever it is.
macro_rules! each {
    ($either:expr, $door:ident => $call:expr) => {
        match $either {
            Either::First($door) => $call,
            Either::Second($door) => $call,
        }
    };
}

impl<A: Door, B: Door> Door for Either<A, B> {
    type Options = Either<A::Options, B::Options>;
    type PerWorker = (A::PerWorker, B::PerWorker);
    /// The first door alone may have some.
    type Datagrams = OfFirst<A::Datagrams>;

    fn open(options: &Self::Options, client: &mut Client, pool: &mut Pool) -> Self {
        match options {
            Either::First(options) => Either::First(A::open(options, client, pool)),
            Either::Second(options) => Either::Second(B::open(options, client, pool)),
        }
    }

    fn refusal(options: &Self::Options) -> &'static [u8] {
        match options {
            Either::First(options) => A::refusal(options),
            Either::Second(options) => B::refusal(options),
        }
    }

    fn step<S: Session>(
        &mut self,
        input: &[u8],
        client: &mut Client,
        cx: &mut Context<'_, S, Self::PerWorker>,
    ) -> Step {
        match self {
            Either::First(door) => door.step(input, client, &mut cx.of_part(|both| &mut both.0)),
            Either::Second(door) => door.step(input, client, &mut cx.of_part(|both| &mut both.1)),
        }
    }

    fn complete<S: Session>(
        &mut self,
        number: u32,
        reply: &Reply,
        client: &mut Client,
        cx: &mut Context<'_, S, Self::PerWorker>,
    ) {
        match self {
            Either::First(door) => door.complete(number, reply, client, &mut cx.of_part(|both| &mut both.0)),
            Either::Second(door) => door.complete(number, reply, client, &mut cx.of_part(|both| &mut both.1)),
        }
    }

    fn complete_errand(&mut self, number: u32, answer: Answer, client: &mut Client, pool: &mut Pool) {
        each!(self, door => door.complete_errand(number, answer, client, pool));
    }

    fn load(&self) -> Load {
        each!(self, door => door.load())
    }

    fn place_of(&self, number: u32) -> usize {
        each!(self, door => door.place_of(number))
    }

    fn charge_bytes(&self, number: u32) -> usize {
        each!(self, door => door.charge_bytes(number))
    }

    fn recharge(&mut self, number: u32, bytes: usize) {
        each!(self, door => door.recharge(number, bytes));
    }

    fn needs_input(&self) -> bool {
        each!(self, door => door.needs_input())
    }

    fn stalled(&self) -> &'static [u8] {
        each!(self, door => door.stalled())
    }

    fn has_work(&self) -> bool {
        each!(self, door => door.has_work())
    }

    fn wants_turn(&self) -> bool {
        each!(self, door => door.wants_turn())
    }

    const READY_SECONDS: u32 = if A::READY_SECONDS > B::READY_SECONDS { A::READY_SECONDS } else { B::READY_SECONDS };

    fn is_ready(&self) -> bool {
        each!(self, door => door.is_ready())
    }

    fn is_watching(&self) -> bool {
        each!(self, door => door.is_watching())
    }

    fn fetch_ahead<'a, S: Session>(
        per_worker: &mut Self::PerWorker,
        inputs: impl Iterator<Item = (&'a Self, &'a [u8])> + Clone,
        session: &S,
    ) {
        let first = |(door, input): (&'a Self, &'a [u8])| match door {
            Either::First(door) => Some((door, input)),
            Either::Second(_) => None,
        };
        let second = |(door, input): (&'a Self, &'a [u8])| match door {
            Either::First(_) => None,
            Either::Second(door) => Some((door, input)),
        };
        A::fetch_ahead(&mut per_worker.0, inputs.clone().filter_map(first), session);
        B::fetch_ahead(&mut per_worker.1, inputs.filter_map(second), session);
    }
}

/// The first door's datagrams, in a server of two.
pub struct OfFirst<T>(pub T);

impl<T: Datagrams<W>, W, V> Datagrams<(W, V)> for OfFirst<T> {
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.sockets()
    }

    fn interest_change(&mut self) -> Option<Interest> {
        self.0.interest_change()
    }

    fn receive<S: Session>(&mut self, cx: &mut Context<'_, S, (W, V)>) -> io::Result<()> {
        self.0.receive(&mut cx.of_part(|both| &mut both.0))
    }

    fn complete<S: Session>(&mut self, id: u32, number: u32, reply: &Reply, cx: &mut Context<'_, S, (W, V)>) {
        self.0.complete(id, number, reply, &mut cx.of_part(|both| &mut both.0));
    }

    fn ask<S: Session>(&mut self, id: u32, number: u32, value_bytes: usize, cx: &mut Context<'_, S, (W, V)>) {
        self.0.ask(id, number, value_bytes, &mut cx.of_part(|both| &mut both.0));
    }

    fn complete_errand<S: Session>(&mut self, id: u32, number: u32, answer: Answer, cx: &mut Context<'_, S, (W, V)>) {
        self.0.complete_errand(id, number, answer, &mut cx.of_part(|both| &mut both.0));
    }

    fn go_on<S: Session>(&mut self, cx: &mut Context<'_, S, (W, V)>) {
        self.0.go_on(&mut cx.of_part(|both| &mut both.0));
    }
}
