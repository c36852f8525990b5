//! Sockets of a door that are not streams: each datagram may be a client of its own. A worker drives them beside its connections.

use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;

use tapetum::Reply;

use super::context::Context;
use crate::os::Interest;
use crate::store::engine::Session;
use crate::store::errands::Answer;

/// The first number of a [`super::connection::Client`] behind datagrams: above those of all that are connected.
pub const FIRST_ID: u32 = 1 << 31;

/// One worker's part of them. Requests are named by their client, from [`FIRST_ID`] on, and their number. `W` is the door's
/// [`super::door::Door::PerWorker`].
pub trait Datagrams<W>: Send + 'static {
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>>;

    /// The events to watch for, if they have changed.
    fn interest_change(&mut self) -> Option<Interest>;

    /// Some socket is readable: takes in what has come, as far as there is room, submits it, and sends what could be answered.
    fn receive<S: Session>(&mut self, cx: &mut Context<'_, S, W>) -> io::Result<()>;

    /// The outcome of a request has come.
    fn complete<S: Session>(&mut self, id: u32, number: u32, reply: &Reply, cx: &mut Context<'_, S, W>);

    /// A get wants room for a value of `value_bytes`.
    fn ask<S: Session>(&mut self, id: u32, number: u32, value_bytes: usize, cx: &mut Context<'_, S, W>);

    /// An errand is done. Its answer is sent.
    fn complete_errand<S: Session>(&mut self, id: u32, number: u32, answer: Answer, cx: &mut Context<'_, S, W>);

    /// Some gets of the worker were answered, or asked: goes on with what waited for that, and sends everything answered.
    fn go_on<S: Session>(&mut self, cx: &mut Context<'_, S, W>);
}

/// For a door that has streams alone.
pub struct NoDatagrams(Infallible);

impl<W> Datagrams<W> for NoDatagrams {
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::empty()
    }

    fn interest_change(&mut self) -> Option<Interest> {
        match self.0 {}
    }

    fn receive<S: Session>(&mut self, _cx: &mut Context<'_, S, W>) -> io::Result<()> {
        match self.0 {}
    }

    fn complete<S: Session>(&mut self, _id: u32, _number: u32, _reply: &Reply, _cx: &mut Context<'_, S, W>) {
        match self.0 {}
    }

    fn ask<S: Session>(&mut self, _id: u32, _number: u32, _value_bytes: usize, _cx: &mut Context<'_, S, W>) {
        match self.0 {}
    }

    fn complete_errand<S: Session>(&mut self, _id: u32, _number: u32, _answer: Answer, _cx: &mut Context<'_, S, W>) {
        match self.0 {}
    }

    fn go_on<S: Session>(&mut self, _cx: &mut Context<'_, S, W>) {
        match self.0 {}
    }
}
