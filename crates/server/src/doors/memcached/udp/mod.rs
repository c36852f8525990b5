//! The door over UDP: a request is one datagram, text or binary behind memcached's frame, and so are most replies.
//!
//! ```text
//!   receive (one system call) -> admit -> a connection each -> the store, one batch -> send (one system call)
//! ```
//! Every datagram is a client of its own: its requests run in order and get one reply. The number of places for unanswered requests is
//! fixed. While all are taken nothing is received, and the kernel drops datagrams beyond its queue. A request that finds no memory is
//! dropped. A worker owns its door; doors share the guard.

pub mod admission;
pub mod frame;
pub mod guard;
pub mod screen;
mod socket;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::{io, iter, mem};

use tapetum::Reply;

use crate::doors::connection::{Client, Connection};
use crate::doors::context::Context;
use crate::doors::door::Door;
use crate::doors::memcached::door::{Memcached, MemcachedOptions};
use crate::doors::open_keyspaces::OpenKeyspaces;
use crate::net::listen::{self, LoopbackAddress};
use crate::os::Interest;
use crate::protocol::binary::Status;
use crate::protocol::{reply, text};
use crate::stats::{Counters, count};
use crate::store::errands::Answer;

use admission::{Request, Silence, admit};
use frame::HEADER_BYTES;
use guard::{Guard, Network, Terms};
use screen::Dialect;
use socket::{Inbox, Outbox, Queue};

pub use socket::{Name, UdpSocket};

/// The first number of a [`Client`] behind datagrams: above those of all that are connected.
pub const FIRST_ID: u32 = 1 << 31;
/// The default address of `--udp`: the same as for TCP.
pub const ADDRESS_DEFAULT: &str = "127.0.0.1:11211";
/// The most unanswered requests of one worker.
const PLACES: usize = 512;
/// The buffer capacity that a place keeps after a request that had to wait.
const REST_KEPT_BYTES: usize = 2048;
/// Sent in place of a reply that exceeds the terms; shorter than any limit.
const TOO_LARGE: &[u8] = text::NOT_OVER_UDP.as_bytes();

const _: () = assert!(HEADER_BYTES + TOO_LARGE.len() <= guard::AMPLIFICATION_MAX * (HEADER_BYTES + b"get a\r\n".len()));

/// The address to listen on, and the limits on strangers.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    pub address: LoopbackAddress,
    /// Peers that may ask for anything.
    pub allow: Vec<Network>,
    /// The most bytes a second that each of the others is sent.
    pub rate_bytes: u32,
    /// The longest datagram to send, including its header.
    pub datagram_bytes_max: usize,
}

/// State that the doors of all workers share.
pub struct Terminal {
    guard: Guard,
    datagram_bytes_max: usize,
    /// The kernel's queues of the doors' sockets.
    queues: Vec<Queue>,
    /// The addresses in use, with the same port in each.
    pub addresses: Vec<SocketAddr>,
}

impl Terminal {
    /// Binds the sockets of each worker, one for every address.
    pub fn bind(options: UdpOptions, workers: usize) -> io::Result<(Arc<Terminal>, Vec<Vec<UdpSocket>>)> {
        let UdpOptions { address, allow, rate_bytes, datagram_bytes_max } = options;
        let bound = listen::bind_each(&address.0, |address| UdpSocket::bind_many(address, workers))?;
        let (mut addresses, mut queues) = (Vec::new(), Vec::new());
        let mut sockets: Vec<Vec<UdpSocket>> = (0..workers).map(|_| Vec::new()).collect();
        for (at, each) in bound {
            addresses.push(at);
            for (worker, socket) in sockets.iter_mut().zip(each) {
                queues.push(socket.queue()?);
                worker.push(socket);
            }
        }
        let guard = Guard::new(allow, rate_bytes, datagram_bytes_max, addresses[0].port());
        Ok((Arc::new(Terminal { guard, datagram_bytes_max, queues, addresses }), sockets))
    }

    /// Datagrams that the kernel dropped before a worker saw them. `None` if the kernel does not report that.
    pub fn dropped_unseen(&self) -> Option<u64> {
        self.queues.iter().map(|queue| queue.dropped().ok().map(u64::from)).sum()
    }
}

/// A place in which a request waits for its answer.
struct Place {
    connection: Connection,
    /// The number of the socket through which it came.
    outlet: usize,
    peer: Name,
    request_id: u16,
    dialect: Dialect,
    terms: Terms,
    /// The part of the request that waits until a part before it is answered.
    rest: Vec<u8>,
    /// There was no memory for a value that it asks for, so it gets no reply.
    withheld: bool,
}

enum PlaceProgress {
    Answered,
    Pending,
    /// It waits until gets of others are answered.
    Held,
    /// There is no memory for it.
    Stuck,
}

impl Place {
    fn progress(&self) -> PlaceProgress {
        let client = &self.connection.client;
        match () {
            () if self.connection.pending() > 0 => PlaceProgress::Pending,
            () if self.rest.is_empty() || client.closing => PlaceProgress::Answered,
            () if client.capped() => PlaceProgress::Held,
            () => PlaceProgress::Stuck,
        }
    }

    /// How many datagrams the reply takes. `None` if it must not be sent.
    fn datagrams(&self, datagram_bytes_max: usize) -> Option<u16> {
        let reply_bytes = self.connection.client.out.unsent_bytes();
        match self.terms {
            Terms::Trusted => frame::count(reply_bytes, datagram_bytes_max - HEADER_BYTES),
            Terms::Stranger { .. } => (!self.is_too_much()).then_some(1),
        }
    }

    /// Whether the reply already exceeds a stranger's limit, so that the rest of the request need not run.
    fn is_too_much(&self) -> bool {
        let reply_bytes = HEADER_BYTES + self.connection.client.out.unsent_bytes();
        matches!(self.terms, Terms::Stranger { reply_bytes_max } if reply_bytes > reply_bytes_max)
    }

    fn refusal(&self) -> Vec<u8> {
        match self.dialect {
            Dialect::Text => TOO_LARGE.to_vec(),
            Dialect::Binary(origin) => {
                let mut refusal = Vec::new();
                reply::binary_refusal(&mut refusal, origin, Status::TooLarge, Status::TooLarge.text());
                refusal
            }
        }
    }
}

/// A socket, and the datagrams to be sent through it.
struct Outlet {
    socket: UdpSocket,
    outbox: Outbox,
}

pub struct UdpDoor {
    terminal: Arc<Terminal>,
    options: MemcachedOptions,
    worker: usize,
    /// One outlet for every address.
    outlets: Vec<Outlet>,
    inbox: Inbox,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Requests that wait until gets of others are answered.
    held: Vec<u32>,
    /// The length of values that gets returned recently.
    value_bytes_expected: Option<usize>,
    interest: Interest,
}

impl UdpDoor {
    pub fn new(terminal: Arc<Terminal>, options: MemcachedOptions, sockets: Vec<UdpSocket>, worker: usize) -> UdpDoor {
        sockets.iter().for_each(UdpSocket::discard);
        let outlets = sockets.into_iter().map(|socket| Outlet { socket, outbox: Outbox::default() });
        UdpDoor {
            terminal,
            options,
            worker,
            outlets: outlets.collect(),
            inbox: Inbox::new(),
            places: Vec::new(),
            free: Vec::new(),
            held: Vec::new(),
            value_bytes_expected: None,
            interest: Interest::READ,
        }
    }

    fn room(&self) -> usize {
        PLACES - (self.places.len() - self.free.len())
    }

    fn receive_at(&mut self, outlet: usize, inbox: &mut Inbox, cx: &mut Context<'_>) -> io::Result<()> {
        let received = match self.outlets[outlet].socket.receive(inbox, self.room()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            other => other?,
        };
        count(&cx.counters.udp_received, received as u64);
        for at in 0..received {
            let (peer, datagram) = inbox.datagram(at);
            count(&cx.counters.bytes_read, datagram.len() as u64);
            match admit(&self.terminal.guard, &peer, datagram, cx.limits.item_bytes_max, cx.now) {
                Ok(request) => self.begin(outlet, peer, request, cx),
                Err(silence) => count_silence(silence, cx.counters),
            }
        }
        Ok(())
    }

    fn begin(&mut self, outlet: usize, peer: Name, request: Request<'_>, cx: &mut Context<'_>) {
        let Request { id: request_id, payload, dialect, terms } = request;
        let answers_bytes_max = match terms {
            Terms::Trusted => usize::MAX,
            Terms::Stranger { reply_bytes_max } => reply_bytes_max,
        };
        let at = match self.free.pop() {
            Some(at) => {
                let place = &mut self.places[at as usize];
                place.connection.client.renew(self.value_bytes_expected, answers_bytes_max);
                if let Door::Memcached(door) = &mut place.connection.door {
                    door.renew();
                }
                (place.outlet, place.peer, place.request_id) = (outlet, peer, request_id);
                (place.dialect, place.terms, place.withheld) = (dialect, terms, false);
                at
            }
            None => {
                let at = self.places.len() as u32;
                let mut client = Client::new(self.worker, FIRST_ID + at);
                client.renew(self.value_bytes_expected, answers_bytes_max);
                let connection = Connection { client, door: Door::Memcached(Memcached::new(self.options.clone())) };
                let (rest, withheld) = (Vec::new(), false);
                self.places.push(Place { connection, outlet, peer, request_id, dialect, terms, rest, withheld });
                at
            }
        };
        let place = &mut self.places[at as usize];
        let taken = place.connection.consume(payload, cx);
        if !place.is_too_much() {
            place.rest.extend_from_slice(&payload[taken..]);
        }
        self.settle(at, cx);
    }

    fn advance(&mut self, at: u32, cx: &mut Context<'_>) {
        let place = &mut self.places[at as usize];
        place.connection.settle(place.rest.len(), cx.budget);
        if place.is_too_much() {
            place.rest.clear();
        }
        if !place.rest.is_empty() {
            let taken = place.connection.consume(&place.rest, cx);
            place.rest.drain(..taken);
        }
        self.settle(at, cx);
    }

    /// Answers a request that is finished, or drops it if it cannot go on.
    fn settle(&mut self, at: u32, cx: &mut Context<'_>) {
        let place = &mut self.places[at as usize];
        place.connection.settle(place.rest.len(), cx.budget);
        match place.progress() {
            PlaceProgress::Pending => return,
            PlaceProgress::Held => return self.held.push(at),
            PlaceProgress::Stuck if place.connection.client.waits() => count(&cx.counters.udp_dropped_busy, 1),
            // Its reply is larger than one request may hold, and nothing is sent before all of it is there.
            PlaceProgress::Stuck => self.refuse(at, cx.counters),
            // Whether it counts is not known: a datagram may be lost, and this one is.
            PlaceProgress::Answered if cx.seat.is_fenced() => count(&cx.counters.udp_dropped_busy, 1),
            PlaceProgress::Answered if place.withheld => count(&cx.counters.udp_dropped_busy, 1),
            PlaceProgress::Answered => self.answer(at, cx.counters),
        }
        let place = &mut self.places[at as usize];
        self.value_bytes_expected = place.connection.client.value_bytes_learned();
        place.connection.client.release(cx.budget, cx.pool);
        place.rest.clear();
        place.rest.shrink_to(REST_KEPT_BYTES);
        self.free.push(at);
    }

    /// Puts the reply into the outbox, or an error if the reply is too large.
    fn answer(&mut self, at: u32, counters: &Counters) {
        let place = &self.places[at as usize];
        // A quiet write or a quiet miss.
        if place.connection.client.out.is_empty() {
            return;
        }
        let datagram_bytes_max = self.terminal.datagram_bytes_max;
        let Some(datagrams) = place.datagrams(datagram_bytes_max) else { return self.refuse(at, counters) };
        count(&counters.udp_answered, 1);
        let payload_bytes = datagram_bytes_max - HEADER_BYTES;
        let mut mail = OutgoingMail { outlet: &mut self.outlets[place.outlet], counters };
        mail.message(place.peer, place.request_id, datagrams, payload_bytes, place.connection.client.out.pieces());
    }

    /// Answers that the reply is too large.
    fn refuse(&mut self, at: u32, counters: &Counters) {
        count(&counters.udp_answered, 1);
        count(&counters.udp_refused_size, 1);
        let place = &self.places[at as usize];
        let payload_bytes = self.terminal.datagram_bytes_max - HEADER_BYTES;
        let mut mail = OutgoingMail { outlet: &mut self.outlets[place.outlet], counters };
        mail.message(place.peer, place.request_id, 1, payload_bytes, iter::once(&place.refusal()[..]));
    }

    /// Sends the datagrams in the outbox, unless what they say may not count any more.
    fn flush(&mut self, cx: &Context<'_>) {
        let counters = cx.counters;
        if cx.seat.is_fenced() {
            return self.outlets.iter_mut().for_each(|outlet| outlet.outbox.clear());
        }
        self.outlets.iter_mut().for_each(|outlet| OutgoingMail { outlet, counters }.flush());
    }
}

/// For the worker. Requests are named by their client, from [`FIRST_ID`] on, and their number.
impl UdpDoor {
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.outlets.iter().map(|outlet| outlet.socket.as_fd())
    }

    /// The store's keyspaces have changed.
    pub fn follow(&mut self, open: &OpenKeyspaces) {
        self.options.follow(open);
        self.places.iter_mut().for_each(|place| place.connection.door.follow(open));
    }

    /// The events to watch for, if they have changed.
    pub fn interest_change(&mut self) -> Option<Interest> {
        let interest = Interest { read: self.room() > 0, ..Interest::NONE };
        (mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }

    /// Some socket is readable: takes in what has come, as far as there is room, submits it, and sends what could be answered.
    pub fn receive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut inbox = mem::take(&mut self.inbox);
        let received = (0..self.outlets.len()).try_for_each(|outlet| self.receive_at(outlet, &mut inbox, cx));
        self.inbox = inbox;
        self.flush(cx);
        received
    }

    /// The outcome of a request has come.
    pub fn complete(&mut self, id: u32, number: u32, reply: &Reply, cx: &mut Context<'_>) {
        let at = id - FIRST_ID;
        self.places[at as usize].connection.complete(number, reply, cx);
        self.advance(at, cx);
    }

    /// A get wants room for a value of `value_bytes`. It does not wait for room here: its value is withheld.
    pub fn ask(&mut self, id: u32, number: u32, value_bytes: usize, cx: &mut Context<'_>) {
        let place = &mut self.places[(id - FIRST_ID) as usize];
        place.connection.ask(number, value_bytes, cx);
        place.withheld |= place.connection.give_up_asked(cx);
    }

    /// An errand is done. Its answer is sent.
    pub fn complete_errand(&mut self, id: u32, number: u32, answer: Answer, cx: &mut Context<'_>) {
        let at = id - FIRST_ID;
        self.places[at as usize].connection.complete_errand(number, answer, cx.pool);
        self.advance(at, cx);
        self.flush(cx);
    }

    /// Some gets of the worker were answered, or asked: goes on with what waited for that, and sends everything answered.
    pub fn go_on(&mut self, cx: &mut Context<'_>) {
        for at in mem::take(&mut self.held) {
            self.advance(at, cx);
        }
        self.flush(cx);
    }
}

/// An outlet and counters, for sending.
struct OutgoingMail<'a> {
    outlet: &'a mut Outlet,
    counters: &'a Counters,
}

impl OutgoingMail<'_> {
    /// Queues a message of `pieces` that takes so many datagrams.
    fn message<'p>(
        &mut self,
        to: Name,
        request_id: u16,
        datagrams: u16,
        payload_bytes: usize,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) {
        let mut pieces = pieces.filter(|piece| !piece.is_empty());
        let mut piece = pieces.next().unwrap_or_default();
        for number in 0..datagrams {
            if self.outlet.outbox.is_full() {
                self.flush();
            }
            self.outlet.outbox.begin(to, &frame::reply(request_id, number, datagrams));
            let mut room_bytes = payload_bytes;
            while room_bytes > 0 && !piece.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(room_bytes));
                self.outlet.outbox.push(now);
                room_bytes -= now.len();
                piece = if later.is_empty() { pieces.next().unwrap_or_default() } else { later };
            }
        }
    }

    fn flush(&mut self) {
        let Outlet { socket, outbox } = &mut *self.outlet;
        if outbox.is_empty() {
            return;
        }
        let datagrams = outbox.len();
        let sent = socket.send(outbox);
        count(&self.counters.udp_sent, sent.datagrams as u64);
        count(&self.counters.udp_dropped_unsent, (datagrams - sent.datagrams) as u64);
        count(&self.counters.bytes_written, sent.bytes as u64);
    }
}

fn count_silence(silence: Silence, counters: &Counters) {
    let counter = match silence {
        Silence::Port => &counters.udp_dropped_port,
        Silence::NoRequest => &counters.udp_dropped_no_request,
        Silence::Fragment => &counters.udp_dropped_fragment,
        Silence::NotAllowed => &counters.udp_dropped_not_allowed,
        Silence::Rate => &counters.udp_dropped_rate,
    };
    count(counter, 1);
}
