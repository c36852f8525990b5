//! One worker: an event loop over its connections, the listening sockets and its session of the store.
//!
//! ```text
//!   wait -> read the connections reported, submit what they ask for
//!        -> rounds: poll the store -> complete, give room to gets that ask, submit requests that were blocked,
//!                   one write to each connection completed and to a few of the others; again while that gave anything
//!        -> wait
//! ```
//! All requests of one report (`os::Epoll`) are submitted before one poll, so that they go to flash as one batch, and nothing ever waits
//! for a single read. If DRAM answers most of them, a few more reports are taken before that poll to fill the batch, because ringing the
//! drive's doorbell costs as much as an answer. Answers from DRAM are sent after the flash reads were started; answers from flash that come
//! meanwhile are sent before the remaining ones. New connections are spread over the workers: the accepting worker hands one to the worker
//! that has the fewest. A worker is a thread, and never blocks but in its wait for events. It owns its connections with all they hold, and
//! shares [`Shared`]: the budget, the figures and the mailboxes.

// The server is above the simulator: it may read the clock. Relative expiries need it, once a round.
#![allow(clippy::disallowed_methods)]

mod accept;
mod care;
mod handshakes;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, mem};

use tapetum::{Ask, Reply};

use crate::doors::connection::Stream;
use crate::doors::context::{Context, unix_seconds};
use crate::doors::door::{Door, DoorOptions};
use crate::doors::memcached::pipeline::Pipeline;
use crate::doors::memcached::udp::{self, UdpDoor};
use crate::net::arrivals::Arrivals;
use crate::net::gets::Gets;
use crate::net::limits::{Budget, Limits};
use crate::net::listen::Listener;
use crate::net::mailbox::{Mail, Mailbox};
use crate::net::out::Pool;
use crate::os::{self, Epoll, Interest, Ready};
use crate::stats::Figures;
use crate::stats::latencies::{AnsweredAtOnce, TimedRequest};
use crate::store::errands::{Answer, Errands};
use crate::store::store_slot::Seat;
use handshakes::Handshakes;
use tapetum_access::tls::Tls;
use zeroize::Zeroize;

const SCRATCH_BYTES: usize = 64 << 10;
/// The most reports taken before the store is polled, and how long after the first one another may be taken: requests that wait for flash
/// wait for these reports too.
const REPORTS_MAX: usize = 4;
const REPORTS_TIME: Duration = Duration::from_micros(300);
/// Rounds of polling before the sockets are checked again.
const ROUNDS_MAX: usize = 16;
/// Connections looked after before the store is polled again, besides those that flash has just answered.
const SENDS_MAX: usize = 16;
/// How often a connection that waits for memory checks again.
const WAIT_RETRY_MS: i32 = 10;
/// How often an idle worker looks for stalled clients and paused listeners.
const LOOK_MS: i32 = 1000;
/// While requests are in flight the store is polled at least this often, although its event reports replies.
const STORE_LOOK_MS: i32 = 100;
/// How long a stop waits for replies and for sending them.
const STOP_GRACE: Duration = Duration::from_secs(5);

const ID_MAILBOX: u64 = u64::MAX;
const ID_SESSION: u64 = u64::MAX - 1;
const ID_DATAGRAMS: u64 = u64::MAX - 2;
const ID_EXCHANGE: u64 = u64::MAX - 3;
const ID_LISTENER: u64 = 1 << 32;

/// State that all workers share.
pub struct Shared {
    pub limits: Limits,
    pub budget: Arc<Budget>,
    pub figures: Figures,
    pub errands: Errands,
    pub listeners: Vec<Listener>,
    /// For listeners that [may have it](Listener::may_have_tls), and for clients that begin it.
    pub tls: Option<Arc<Tls>>,
    /// By listener, whether its clients begin with TLS, if at all; others begin it later.
    pub begins_with_tls: Vec<bool>,
    /// One for each worker.
    pub mailboxes: Vec<Mailbox>,
    pub stopping: AtomicBool,
}

pub struct Worker {
    index: usize,
    shared: Arc<Shared>,
    /// Options by listener.
    options: Vec<DoorOptions>,
    /// The session's count of edits when the doors last looked their keyspaces up.
    keyspace_edits: u64,
    seat: Seat,
    /// Descriptors of the session that the epoll has.
    watched: Vec<RawFd>,
    epoll: Epoll,
    /// Boxed, because each is taken out and put back several times for a request.
    connections: Vec<Option<Box<Stream>>>,
    free: Vec<u32>,
    /// Boxed, because it is taken out and put back too.
    datagrams: Option<Box<UdpDoor>>,
    /// Connections to look after before the next wait, in order.
    queue: VecDeque<u32>,
    /// Connections that wait for memory.
    waiting: Vec<u32>,
    /// Connections that wait until gets of this worker are answered.
    capped: Vec<u32>,
    pool: Pool,
    scratch: Vec<u8>,
    /// Opened input of TLS.
    plain: Vec<u8>,
    handshakes: Handshakes,
    arrivals: Arrivals,
    gets: Gets,
    pipeline: Pipeline,
    now: u32,
    /// When the events of the current round were reported.
    came: Instant,
    at_once: AnsweredAtOnce,
    /// When stalled clients were last checked.
    looked_at: u32,
    /// When evictions were last checked, and their counts then.
    evictions_looked_at: u32,
    evictions: (u64, u64),
    /// Whether clients that are idle, or late with their protocol's beginning, are closed.
    kicks: bool,
    /// When they were last looked for.
    kicked_at: u32,
    listening: bool,
    /// When accepting last failed.
    paused_at: u32,
    paused_since: Option<Instant>,
    /// The last rounds stopped at their limit while there was more to do.
    unfinished: bool,
    /// The store's fence had passed before the last poll: what is unsent acknowledges nothing.
    is_fenced: bool,
}

impl Worker {
    pub fn new(
        index: usize,
        shared: Arc<Shared>,
        options: Vec<DoorOptions>,
        seat: Seat,
        datagrams: Option<UdpDoor>,
    ) -> io::Result<Worker> {
        assert_eq!(options.len(), shared.listeners.len(), "every listener has its options");
        let epoll = Epoll::new()?;
        epoll.add(shared.mailboxes[index].fd(), ID_MAILBOX, Interest::READ)?;
        epoll.add(seat.exchange_fd(), ID_EXCHANGE, Interest::READ)?;
        for socket in datagrams.iter().flat_map(UdpDoor::sockets) {
            epoll.add(socket.as_raw_fd(), ID_DATAGRAMS, Interest::READ)?;
        }
        let gets = Gets::new(shared.limits.in_flight_bytes, shared.mailboxes.len());
        let has_beginning = shared.tls.is_some() || options.iter().any(DoorOptions::has_beginning);
        let kicks = shared.limits.idle_seconds > 0 || has_beginning;
        let mut worker = Worker {
            index,
            shared,
            options,
            keyspace_edits: 0,
            seat,
            watched: Vec::new(),
            epoll,
            connections: Vec::new(),
            free: Vec::new(),
            datagrams: datagrams.map(Box::new),
            queue: VecDeque::new(),
            waiting: Vec::new(),
            capped: Vec::new(),
            pool: Pool::default(),
            scratch: vec![0; SCRATCH_BYTES],
            plain: Vec::new(),
            handshakes: Handshakes::default(),
            arrivals: Arrivals::new(),
            gets,
            pipeline: Pipeline::default(),
            now: unix_seconds(),
            came: Instant::now(),
            at_once: AnsweredAtOnce::default(),
            looked_at: 0,
            evictions_looked_at: 0,
            evictions: (0, 0),
            kicks,
            kicked_at: 0,
            listening: false,
            paused_at: 0,
            paused_since: None,
            unfinished: false,
            is_fenced: false,
        };
        worker.listen()?;
        Ok(worker)
    }

    /// Runs until the server stops and everything in flight is answered.
    pub fn run(mut self) -> io::Result<()> {
        let (mut ready, mut replies, mut asks) = (Vec::new(), Vec::new(), Vec::new());
        let mut stop_at: Option<Instant> = None;
        loop {
            let timeout_ms = self.timeout_ms(stop_at.is_some());
            self.gather(timeout_ms, &mut ready)?;
            if self.shared.stopping.load(Ordering::Acquire) && stop_at.is_none() {
                stop_at = Some(Instant::now() + STOP_GRACE);
                self.begin_stop()?;
            }
            self.ask_again();
            self.rounds(&mut replies, &mut asks)?;
            self.look_around()?;
            if let Some(stop_at) = stop_at {
                let late = Instant::now() >= stop_at;
                let quiet = self.connections.iter().all(Option::is_none) && self.seat.in_flight() == 0;
                if quiet || late {
                    return Ok(());
                }
            }
        }
    }

    /// Takes reports of the sockets until the store has enough to do at once.
    fn gather(&mut self, mut timeout_ms: i32, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.handshakes.renew_steps();
        let enough = self.seat.in_flight() + os::EVENTS_MAX;
        let mut until = None;
        for _ in 0..REPORTS_MAX {
            if self.seat.event_fds_count() != self.watched.len() {
                self.watch_session()?;
            }
            self.epoll.wait(timeout_ms, ready)?;
            self.now = unix_seconds();
            self.came = Instant::now();
            self.look_at_keyspaces();
            self.events(ready)?;
            self.measure_answered_at_once();
            let is_batch = ready.len() < os::EVENTS_MAX || self.seat.in_flight() >= enough;
            // Clients that wait for memory come before clients that have sent nothing yet.
            if is_batch || !self.waiting.is_empty() {
                break;
            }
            let now = Instant::now();
            if now >= *until.get_or_insert(now + REPORTS_TIME) {
                break;
            }
            timeout_ms = 0;
        }
        Ok(())
    }

    fn timeout_ms(&self, stopping: bool) -> i32 {
        if !self.queue.is_empty() || self.unfinished {
            return 0;
        }
        let soon = stopping || !self.waiting.is_empty();
        let kicks = self.kicks && self.free.len() < self.connections.len();
        let look = !self.listening || self.shared.budget.someone_waits() || kicks || self.tells_of_evictions();
        match (soon, look) {
            (true, _) => WAIT_RETRY_MS,
            _ if self.seat.in_flight() > 0 => STORE_LOOK_MS,
            (_, true) => LOOK_MS,
            _ => -1,
        }
    }

    /// Handles a report: first the sockets with little input, together, then the others.
    fn events(&mut self, ready: &[Ready]) -> io::Result<()> {
        let mut arrivals = mem::take(&mut self.arrivals);
        let mut others = 0u32;
        for (at, event) in ready.iter().enumerate() {
            let stream = usize::try_from(event.id).ok().and_then(|id| self.connections.get_mut(id)?.as_mut());
            let little = stream.filter(|stream| event.read && !event.gone && stream.brings_little());
            let (scratch, plain) = (&mut self.scratch, &mut self.plain);
            let came = little
                .is_some_and(|stream| arrivals.read(event.id as u32, |piece| stream.read_piece(piece, scratch, plain)));
            others |= u32::from(!came) << at;
        }
        if self.take_arrivals(&arrivals) {
            arrivals.wipe();
            self.plain.zeroize();
            self.scratch.as_mut_slice().zeroize();
        }
        arrivals.clear();
        self.arrivals = arrivals;
        let others = ready.iter().enumerate().filter(|(at, _)| others >> at & 1 == 1);
        others.map(|(_, event)| event).try_for_each(|event| self.event(*event))
    }

    /// Returns whether there is a password in one of them.
    fn take_arrivals(&mut self, arrivals: &Arrivals) -> bool {
        let connections = &self.connections;
        let inputs = arrivals
            .iter()
            .filter_map(|(id, input)| connections[id as usize].as_ref().map(|stream| (&stream.connection.door, input)));
        Door::fetch_ahead(&mut self.pipeline, inputs, &self.seat);
        let mut has_secret = false;
        for (id, input) in arrivals.iter() {
            self.with_stream(id, |stream, cx| has_secret |= stream.take_arrived(input, cx));
        }
        has_secret
    }

    fn event(&mut self, ready: Ready) -> io::Result<()> {
        match ready.id {
            ID_SESSION => {}
            ID_EXCHANGE => self.exchange_session()?,
            ID_MAILBOX => {
                let Mail { accepted, answers, censuses, woken } = self.shared.mailboxes[self.index].empty();
                accepted.into_iter().for_each(|client| self.adopt(client));
                answers.into_iter().for_each(|(token, answer)| self.complete_errand(token, answer));
                censuses.into_iter().for_each(|census| self.tell_census(&census));
                woken.into_iter().for_each(|id| self.wake_client(id));
            }
            ID_DATAGRAMS => self.with_datagrams(|datagrams, cx| datagrams.receive(cx))?,
            ID_LISTENER.. => self.accept((ready.id - ID_LISTENER) as usize)?,
            id => self.connection_event(id as u32, ready)?,
        }
        Ok(())
    }

    /// Hears of the session's descriptors, which become more when it is asked for an ordered keyspace.
    fn watch_session(&mut self) -> io::Result<()> {
        // The store is polled in every round, so a descriptor that stays ready needs no second event. Some are shared by all sessions, and stay
        // ready until another worker has polled.
        let interest = Interest { edge: true, ..Interest::READ };
        for fd in self.seat.event_fds().split_off(self.watched.len()) {
            self.epoll.add(fd, ID_SESSION, interest)?;
            self.watched.push(fd);
        }
        Ok(())
    }

    /// Exchanges the session. Requests in flight on the old one are answered with the reason why it is gone.
    fn exchange_session(&mut self) -> io::Result<()> {
        let mut replies = Vec::new();
        self.seat.poll(&mut replies);
        replies.into_iter().for_each(|reply| self.complete(reply));
        self.watched.drain(..).try_for_each(|fd| self.epoll.remove(fd))?;
        let refused = self.seat.exchange();
        let Some(refused) = refused else { return Ok(()) };
        self.follow_keyspaces(true);
        for stream in self.connections.iter_mut().flatten() {
            stream.connection.stop_asking(&mut self.gets);
        }
        refused.into_iter().for_each(|reply| self.complete(reply));
        mem::take(&mut self.capped).into_iter().for_each(|id| self.enqueue(id));
        if self.datagrams.is_some() {
            self.with_datagrams(|datagrams, cx| datagrams.go_on(cx));
        }
        Ok(())
    }

    fn connection_event(&mut self, id: u32, ready: Ready) -> io::Result<()> {
        // It may have been closed earlier in this round.
        let Some(stream) = &mut self.connections[id as usize] else { return Ok(()) };
        if stream.is_silent() && !self.handshakes.take_place(id) {
            stream.wait_for_handshake();
            self.enqueue(id);
            return Ok(());
        }
        if stream.is_silent() {
            stream.begin_handshake(self.now);
        }
        // Others have their turn before more hands are shaken; the socket is reported again.
        if stream.shakes_hands() && !self.handshakes.may_step() {
            return Ok(());
        }
        let Some(mut stream) = self.connections[id as usize].take() else { return Ok(()) };
        if ready.gone && stream.hung_up() {
            self.epoll.remove(stream.fd())?;
        }
        if ready.read || ready.gone {
            stream.read(&mut self.context());
        }
        self.connections[id as usize] = Some(stream);
        self.enqueue(id);
        Ok(())
    }

    fn with_datagrams<R>(&mut self, work: impl FnOnce(&mut UdpDoor, &mut Context<'_>) -> R) -> R {
        let Some(mut datagrams) = self.datagrams.take() else { unreachable!("no datagram comes without its sockets") };
        let result = work(&mut datagrams, &mut self.context());
        self.datagrams = Some(datagrams);
        result
    }

    /// Works on a connection, which is queued to be looked after.
    fn with_stream(&mut self, id: u32, work: impl FnOnce(&mut Stream, &mut Context<'_>)) {
        let Some(mut stream) = self.connections.get_mut(id as usize).and_then(Option::take) else {
            unreachable!("a connection stays until its requests are answered, and until it is looked after")
        };
        work(&mut stream, &mut self.context());
        self.connections[id as usize] = Some(stream);
        self.enqueue(id);
    }

    fn enqueue(&mut self, id: u32) {
        if let Some(stream) = &mut self.connections[id as usize]
            && !mem::replace(&mut stream.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    fn context(&mut self) -> Context<'_> {
        Context {
            seat: &mut self.seat,
            limits: &self.shared.limits,
            budget: &self.shared.budget,
            figures: &self.shared.figures,
            errands: &self.shared.errands,
            worker: self.index,
            counters: &self.shared.figures.counters[self.index],
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            plain: &mut self.plain,
            now: self.now,
            came: self.came,
            at_once: &mut self.at_once,
            gets: &mut self.gets,
            pipeline: &mut self.pipeline,
        }
    }

    /// Polls the store and looks after connections until neither gives anything new.
    fn rounds(&mut self, replies: &mut Vec<Reply>, asks: &mut Vec<Ask>) -> io::Result<()> {
        self.unfinished = true;
        for _ in 0..ROUNDS_MAX {
            replies.clear();
            if self.seat.may_go_over() {
                self.exchange_session()?;
            }
            self.look_at_fence();
            self.seat.poll(replies);
            self.seat.take_asks(asks);
            if replies.is_empty() && asks.is_empty() && self.queue.is_empty() {
                self.unfinished = false;
                break;
            }
            if !replies.is_empty() {
                self.came = Instant::now();
            }
            // A get that asks for room does not keep others from being submitted until it is allowed.
            let gets_left = !replies.is_empty() || !asks.is_empty();
            if gets_left {
                for id in mem::take(&mut self.capped) {
                    self.enqueue(id);
                }
            }
            let queued_before = self.queue.len();
            for reply in replies.drain(..) {
                self.complete(reply);
            }
            for Ask { token, value_bytes } in asks.drain(..) {
                self.ask(token, value_bytes);
            }
            // Answers from flash have waited longest: send them first.
            let completed = self.queue.len() - queued_before;
            self.queue.rotate_right(completed);
            if gets_left && self.datagrams.is_some() {
                self.with_datagrams(|datagrams, cx| datagrams.go_on(cx));
            }
            self.look_after_queued(completed + SENDS_MAX)?;
            self.measure_answered_at_once();
        }
        self.watch_datagrams()
    }

    /// Records latencies of requests answered at once. They are answered together, so each took until now.
    fn measure_answered_at_once(&mut self) {
        let AnsweredAtOnce { gets, sets } = mem::take(&mut self.at_once);
        if gets + sets == 0 {
            return;
        }
        let (took, latencies) = (self.came.elapsed(), &self.shared.figures.latencies[self.index]);
        for (request, requests) in [(TimedRequest::GetFromMemory, gets), (TimedRequest::Set, sets)] {
            if requests > 0 {
                latencies.add(request, requests, took);
            }
        }
    }

    fn watch_datagrams(&mut self) -> io::Result<()> {
        let stopping = self.shared.stopping.load(Ordering::Acquire);
        let Some(datagrams) = self.datagrams.as_mut().filter(|_| !stopping) else { return Ok(()) };
        match datagrams.interest_change() {
            Some(interest) => {
                let mut sockets = datagrams.sockets();
                sockets.try_for_each(|socket| self.epoll.change(socket.as_raw_fd(), ID_DATAGRAMS, interest))
            }
            None => Ok(()),
        }
    }

    fn complete(&mut self, reply: Reply) {
        let id = (reply.token >> 32) as u32;
        if id >= udp::FIRST_ID {
            return self.with_datagrams(|datagrams, cx| datagrams.complete(id, reply.token as u32, &reply, cx));
        }
        self.with_stream(id, |stream, cx| stream.connection.complete(reply.token as u32, &reply, cx));
    }

    /// A get asks for room for a long value.
    fn ask(&mut self, token: u64, value_bytes: usize) {
        let id = (token >> 32) as u32;
        if id >= udp::FIRST_ID {
            return self.with_datagrams(|datagrams, cx| datagrams.ask(id, token as u32, value_bytes, cx));
        }
        self.with_stream(id, |stream, cx| stream.connection.ask(token as u32, value_bytes, cx));
    }

    fn complete_errand(&mut self, token: u64, answer: Answer) {
        let id = (token >> 32) as u32;
        if id >= udp::FIRST_ID {
            return self.with_datagrams(|datagrams, cx| datagrams.complete_errand(id, token as u32, answer, cx));
        }
        let Some(stream) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else {
            unreachable!("a connection stays until its requests are answered")
        };
        stream.connection.complete_errand(token as u32, answer, &mut self.pool);
        self.enqueue(id);
    }
}
