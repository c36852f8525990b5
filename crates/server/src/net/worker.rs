//! One worker: an event loop over its connections, the listening sockets and its session of the store.
//!
//! ```text
//!   wait -> read the connections reported, submit what came -> poll the store -> complete, give room to what asks for it,
//!           submit what was blocked, one write to each connection completed and to a few of the others -> poll again while that gave something -> wait
//! ```
//! What the connections and datagrams of one report (`os::Epoll`) ask for is submitted before one poll, so that it goes to flash as one batch,
//! and nothing ever waits for one read. Where DRAM answers most of it, a few more reports are taken before that poll, so that it still is a
//! batch: a doorbell of the drive costs as much as an answer. What DRAM answered is sent after the doorbell, while flash reads; what flash
//! answers meanwhile goes before the rest of it. New connections are spread over the workers: whoever accepts one hands it to the worker
//! that has the fewest. A worker owns its connections; it shares the budget, the figures and the mailboxes.

// The server is above the simulator: it may read the clock. Relative expiries need it, once a round.
#![allow(clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, mem};

use tapetum::{Ask, Reply};
use tapetum_drive::Event;
use tapetum_drive::env::Env;

use crate::doors::memcached::pipeline::Pipeline;
use crate::doors::memcached::udp::{self, Door};
use crate::net::arrivals::Arrivals;
use crate::net::connection::{Context, Stream};
use crate::net::gets::Gets;
use crate::net::limits::{Budget, Limits};
use crate::net::listen::Listener;
use crate::net::out::Pool;
use crate::os::{self, Epoll, Interest, Ready};
use crate::stats::{Figures, count};
use crate::store::engine::Session;
use crate::store::errands::Errands;

const SCRATCH_BYTES: usize = 64 << 10;
/// Reports of the sockets that are taken before the store is asked for what they brought, and how long others may be taken after
/// the first: what waits for flash waits for them too.
const REPORTS_MAX: usize = 4;
const REPORTS_TIME: Duration = Duration::from_micros(300);
/// Rounds of polling before the sockets are looked at again.
const ROUNDS_MAX: usize = 16;
/// Connections looked after, beside those that flash has just answered, before the store is polled again.
const SENDS_MAX: usize = 16;
/// New connections taken before others have their turn.
const ACCEPTS_MAX: usize = 16;
/// How soon a connection that waits for memory asks again, if nothing happens before.
const WAIT_RETRY_MS: i32 = 10;
/// A look around when nothing happens: stalled clients, listeners that ran out of descriptors.
const LOOK_MS: i32 = 1000;
/// The store is polled so often at least while it owes replies, though it says when it has some.
const STORE_LOOK_MS: i32 = 100;
/// What is still in flight or unsent this long after a stop is given up.
const STOP_GRACE: Duration = Duration::from_secs(5);

const ID_MAILBOX: u64 = u64::MAX;
const ID_SESSION: u64 = u64::MAX - 1;
const ID_UDP: u64 = u64::MAX - 2;
const ID_EXCHANGE: u64 = u64::MAX - 3;
const ID_LISTENER: u64 = 1 << 32;

/// How others reach a worker.
pub struct Mailbox {
    event: Event,
    accepted: Mutex<Vec<OwnedFd>>,
    /// Errands that are done: the token of each, and its answer.
    answers: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Connections that it has or was handed.
    connections: AtomicUsize,
}

impl Mailbox {
    pub fn new() -> io::Result<Mailbox> {
        let (accepted, answers) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        Ok(Mailbox { event: Event::new()?, accepted, answers, connections: AtomicUsize::new(0) })
    }

    pub fn answer(&self, token: u64, answer: Vec<u8>) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push((token, answer));
        self.wake();
    }

    pub fn wake(&self) {
        self.event.raise();
    }
}

/// What all workers share.
pub struct Shared {
    pub limits: Limits,
    pub budget: Budget,
    pub figures: Figures,
    pub errands: Errands,
    pub listeners: Vec<Listener>,
    /// One a worker.
    pub mailboxes: Vec<Mailbox>,
    pub stopping: AtomicBool,
}

/// The store's clock: see [`Env`].
pub fn unix_seconds() -> u32 {
    Env::system().unix_seconds()
}

fn watch_session(epoll: &Epoll, session: &impl Session) -> io::Result<()> {
    // The store is polled in every round, so what stays ready needs no second word: some of these descriptors are shared by all
    // sessions, and stay ready until another worker has polled.
    let interest = Interest { edge: true, ..Interest::READ };
    session.event_fds().into_iter().try_for_each(|fd| epoll.add(fd, ID_SESSION, interest))
}

pub struct Worker<S> {
    index: usize,
    shared: Arc<Shared>,
    session: S,
    epoll: Epoll,
    /// Boxes, as each is taken out and put back several times a request.
    connections: Vec<Option<Box<Stream>>>,
    free: Vec<u32>,
    /// Where datagrams come in. A box, as it is taken out and put back too.
    door: Option<Box<Door>>,
    /// Connections to look after before the next wait, in order.
    queue: VecDeque<u32>,
    /// Connections that wait for memory.
    waiting: Vec<u32>,
    /// Connections that wait for gets of this worker to be answered.
    capped: Vec<u32>,
    pool: Pool,
    scratch: Vec<u8>,
    arrivals: Arrivals,
    gets: Gets,
    pipeline: Pipeline,
    now: u32,
    /// When stalled clients were last looked for.
    looked_at: u32,
    /// When idle clients were last looked for.
    kicked_at: u32,
    listening: bool,
    /// When accepting failed last.
    paused_at: u32,
    paused_since: Option<Instant>,
    /// The last rounds ended before everything was quiet.
    unfinished: bool,
}

impl<S: Session> Worker<S> {
    pub fn new(index: usize, shared: Arc<Shared>, session: S, door: Option<Door>) -> io::Result<Worker<S>> {
        let epoll = Epoll::new()?;
        epoll.add(shared.mailboxes[index].event.as_raw_fd(), ID_MAILBOX, Interest::READ)?;
        watch_session(&epoll, &session)?;
        if let Some(fd) = session.exchange_fd() {
            epoll.add(fd, ID_EXCHANGE, Interest::READ)?;
        }
        for fd in door.iter().flat_map(Door::fds) {
            epoll.add(fd, ID_UDP, Interest::READ)?;
        }
        let gets = Gets::new(shared.limits.in_flight_bytes, shared.mailboxes.len());
        let mut worker = Worker {
            index,
            shared,
            session,
            epoll,
            connections: Vec::new(),
            free: Vec::new(),
            door: door.map(Box::new),
            queue: VecDeque::new(),
            waiting: Vec::new(),
            capped: Vec::new(),
            pool: Pool::default(),
            scratch: vec![0; SCRATCH_BYTES],
            arrivals: Arrivals::new(),
            gets,
            pipeline: Pipeline::default(),
            now: unix_seconds(),
            looked_at: 0,
            kicked_at: 0,
            listening: false,
            paused_at: 0,
            paused_since: None,
            unfinished: false,
        };
        worker.listen()?;
        Ok(worker)
    }

    fn listen(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        for (at, listener) in shared.listeners.iter().enumerate() {
            let interest = Interest { exclusive: true, ..Interest::READ };
            let added = self.epoll.add(listener.as_raw_fd(), ID_LISTENER + at as u64, interest);
            added.inspect_err(|_| {
                // Those before it are added again with it.
                shared.listeners[..at].iter().for_each(|before| drop(self.epoll.remove(before.as_raw_fd())));
            })?;
        }
        self.listening = true;
        if let Some(since) = self.paused_since.take() {
            let counters = &shared.figures.counters[self.index];
            count(&counters.time_in_listen_disabled_us, since.elapsed().as_micros() as u64);
        }
        shared.figures.workers_listening.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Accepts nothing for a second.
    fn pause_listening(&mut self, error: &io::Error) -> io::Result<()> {
        tracing::warn!("no connection can be accepted: {error}; trying again in a second");
        self.paused_at = self.now;
        self.paused_since.get_or_insert_with(Instant::now);
        count(&self.shared.figures.counters[self.index].listen_disabled_num, 1);
        self.stop_listening()
    }

    fn stop_listening(&mut self) -> io::Result<()> {
        if !mem::take(&mut self.listening) {
            return Ok(());
        }
        self.shared.figures.workers_listening.fetch_sub(1, Ordering::Relaxed);
        self.shared.listeners.iter().try_for_each(|listener| self.epoll.remove(listener.as_raw_fd()))
    }

    /// Runs until the server stops, and then until what was in flight is done.
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
                let quiet = self.connections.iter().all(Option::is_none) && self.session.in_flight() == 0;
                if quiet || late {
                    return Ok(());
                }
            }
        }
    }

    /// Takes what the sockets have, until that gives the store enough to do at once.
    fn gather(&mut self, mut timeout_ms: i32, ready: &mut Vec<Ready>) -> io::Result<()> {
        let enough = self.session.in_flight() + os::EVENTS_MAX;
        let mut until = None;
        for _ in 0..REPORTS_MAX {
            self.epoll.wait(timeout_ms, ready)?;
            self.now = unix_seconds();
            self.events(ready)?;
            let is_batch = ready.len() < os::EVENTS_MAX || self.session.in_flight() >= enough;
            // Who waits for memory comes before those who have said nothing yet.
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
        let kicks = self.shared.limits.idle_seconds > 0 && self.free.len() < self.connections.len();
        let look = !self.listening || self.shared.budget.someone_waits() || kicks;
        match (soon, look) {
            (true, _) => WAIT_RETRY_MS,
            _ if self.session.in_flight() > 0 => STORE_LOOK_MS,
            (_, true) => LOOK_MS,
            _ => -1,
        }
    }

    /// Takes all of a report: first from those who bring little, together, then from the others.
    fn events(&mut self, ready: &[Ready]) -> io::Result<()> {
        let mut arrivals = mem::take(&mut self.arrivals);
        let mut others = 0u32;
        for (at, event) in ready.iter().enumerate() {
            let stream = usize::try_from(event.id).ok().and_then(|id| self.connections.get(id)?.as_ref());
            let little = stream.filter(|stream| event.read && !event.gone && stream.brings_little());
            let came = little.is_some_and(|stream| arrivals.read(event.id as u32, stream.fd()));
            others |= u32::from(!came) << at;
        }
        self.take_arrivals(&arrivals);
        arrivals.clear();
        self.arrivals = arrivals;
        let others = ready.iter().enumerate().filter(|(at, _)| others >> at & 1 == 1);
        others.map(|(_, event)| event).try_for_each(|event| self.event(*event))
    }

    fn take_arrivals(&mut self, arrivals: &Arrivals) {
        self.pipeline.fetch_ahead(arrivals.iter().map(|(_, input)| input), &self.session);
        for (id, input) in arrivals.iter() {
            self.with_stream(id, |stream, cx| stream.take_arrived(input, cx));
        }
    }

    fn event(&mut self, ready: Ready) -> io::Result<()> {
        match ready.id {
            ID_SESSION => {}
            ID_EXCHANGE => self.exchange_session()?,
            ID_MAILBOX => {
                let shared = Arc::clone(&self.shared);
                let mailbox = &shared.mailboxes[self.index];
                mailbox.event.clear();
                let accepted = mem::take(&mut *mailbox.accepted.lock().unwrap_or_else(PoisonError::into_inner));
                let answers = mem::take(&mut *mailbox.answers.lock().unwrap_or_else(PoisonError::into_inner));
                for fd in accepted {
                    self.adopt(fd);
                }
                for (token, answer) in answers {
                    self.complete_errand(token, answer);
                }
            }
            ID_UDP => self.with_door(|door, cx| door.receive(cx))?,
            ID_LISTENER.. => self.accept((ready.id - ID_LISTENER) as usize)?,
            id => self.connection_event(id as u32, ready)?,
        }
        Ok(())
    }

    /// Has another session from now on: what the last one had in flight is answered with the reason why it is gone.
    fn exchange_session(&mut self) -> io::Result<()> {
        let mut replies = Vec::new();
        self.session.poll(&mut replies);
        replies.into_iter().for_each(|reply| self.complete(reply));
        self.session.event_fds().into_iter().try_for_each(|fd| self.epoll.remove(fd))?;
        let refused = self.session.exchange();
        watch_session(&self.epoll, &self.session)?;
        let Some(refused) = refused else { return Ok(()) };
        for stream in self.connections.iter_mut().flatten() {
            stream.connection.stop_asking(&mut self.gets);
        }
        refused.into_iter().for_each(|reply| self.complete(reply));
        mem::take(&mut self.capped).into_iter().for_each(|id| self.enqueue(id));
        if self.door.is_some() {
            self.with_door(|door, cx| {
                door.retry(cx);
                door.flush(cx.counters);
            });
        }
        Ok(())
    }

    fn connection_event(&mut self, id: u32, ready: Ready) -> io::Result<()> {
        // It may have been closed earlier in this round.
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

    fn with_door<R>(&mut self, work: impl FnOnce(&mut Door, &mut Context<'_, S>) -> R) -> R {
        let Some(mut door) = self.door.take() else { unreachable!("nothing comes by UDP without a door") };
        let result = work(&mut door, &mut self.context());
        self.door = Some(door);
        result
    }

    /// Works on a connection, which is looked after later.
    fn with_stream(&mut self, id: u32, work: impl FnOnce(&mut Stream, &mut Context<'_, S>)) {
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

    fn context(&mut self) -> Context<'_, S> {
        Context {
            session: &mut self.session,
            limits: &self.shared.limits,
            budget: &self.shared.budget,
            figures: &self.shared.figures,
            errands: &self.shared.errands,
            worker: self.index,
            counters: &self.shared.figures.counters[self.index],
            pool: &mut self.pool,
            scratch: &mut self.scratch,
            now: self.now,
            gets: &mut self.gets,
            pipeline: &mut self.pipeline,
        }
    }

    fn accept(&mut self, at: usize) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let Some(listener) = shared.listeners.get(at).filter(|_| self.listening) else { return Ok(()) };
        for _ in 0..ACCEPTS_MAX {
            match os::accept(listener.as_raw_fd()) {
                Ok(fd) => self.welcome(fd),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => return Ok(()),
                    _ => return self.pause_listening(&error),
                },
            }
        }
        Ok(())
    }

    fn welcome(&mut self, fd: OwnedFd) {
        let shared = Arc::clone(&self.shared);
        let counters = &shared.figures.counters[self.index];
        if shared.figures.connections.fetch_add(1, Ordering::Relaxed) >= shared.limits.connections {
            shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
            count(&counters.rejected_connections, 1);
            let farewell = [io::IoSlice::new(b"ERROR Too many open connections\r\n")];
            // A client that does not take it is closed all the same.
            let _ = os::send(fd.as_raw_fd(), &farewell);
            return;
        }
        count(&counters.total_connections, 1);
        os::set_no_delay(fd.as_raw_fd());
        let load = |at: usize| shared.mailboxes[at].connections.load(Ordering::Relaxed);
        let least = (0..shared.mailboxes.len()).min_by_key(|&at| (load(at), at != self.index)).unwrap_or(self.index);
        let mailbox = &shared.mailboxes[least];
        mailbox.connections.fetch_add(1, Ordering::Relaxed);
        if least == self.index {
            self.adopt(fd);
            return;
        }
        mailbox.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(fd);
        mailbox.wake();
    }

    fn adopt(&mut self, fd: OwnedFd) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            (self.connections.len() - 1) as u32
        });
        if let Err(error) = self.epoll.add(fd.as_raw_fd(), u64::from(id), Interest::READ) {
            tracing::warn!("a client is turned away: {error}");
            self.free.push(id);
            self.shared.mailboxes[self.index].connections.fetch_sub(1, Ordering::Relaxed);
            self.shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let mut stream = Box::new(Stream::new(fd, self.index, id, self.now));
        if self.shared.stopping.load(Ordering::Acquire) {
            stream.stop_reading();
        }
        self.connections[id as usize] = Some(stream);
        self.enqueue(id);
    }

    /// Polls the store and looks after connections until neither gives anything new.
    fn rounds(&mut self, replies: &mut Vec<Reply>, asks: &mut Vec<Ask>) -> io::Result<()> {
        self.unfinished = true;
        for _ in 0..ROUNDS_MAX {
            replies.clear();
            self.session.poll(replies);
            self.session.take_asks(asks);
            if replies.is_empty() && asks.is_empty() && self.queue.is_empty() {
                self.unfinished = false;
                break;
            }
            // Gets that asked keep nobody from submitting others, until they are allowed.
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
            // What flash answered has waited longest: it goes first.
            let completed = self.queue.len() - queued_before;
            self.queue.rotate_right(completed);
            if gets_left && self.door.is_some() {
                self.with_door(|door, cx| {
                    door.retry(cx);
                    door.flush(cx.counters);
                });
            }
            self.look_after_queued(completed + SENDS_MAX)?;
        }
        self.watch_door()
    }

    /// Whether datagrams are waited for, if that has changed.
    fn watch_door(&mut self) -> io::Result<()> {
        let stopping = self.shared.stopping.load(Ordering::Acquire);
        let Some(door) = self.door.as_mut().filter(|_| !stopping) else { return Ok(()) };
        match door.interest_change() {
            Some(interest) => door.fds().try_for_each(|fd| self.epoll.change(fd, ID_UDP, interest)),
            None => Ok(()),
        }
    }

    fn complete(&mut self, reply: Reply) {
        let id = (reply.token >> 32) as u32;
        if id >= udp::FIRST_ID {
            return self.with_door(|door, cx| door.complete(id, reply.token as u32, &reply.outcome, cx));
        }
        self.with_stream(id, |stream, cx| stream.connection.complete(reply.token as u32, &reply.outcome, cx));
    }

    /// A get wants room for a long value.
    fn ask(&mut self, token: u64, value_bytes: usize) {
        let id = (token >> 32) as u32;
        if id >= udp::FIRST_ID {
            return self.with_door(|door, cx| door.ask(id, token as u32, value_bytes, cx));
        }
        self.with_stream(id, |stream, cx| stream.connection.ask(token as u32, value_bytes, cx));
    }

    fn complete_errand(&mut self, token: u64, answer: Vec<u8>) {
        let id = (token >> 32) as u32;
        if id >= udp::FIRST_ID {
            return self.with_door(|door, cx| {
                door.complete_errand(id, token as u32, answer, cx);
                door.flush(cx.counters);
            });
        }
        let Some(stream) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else {
            unreachable!("a connection stays until its requests are answered")
        };
        stream.connection.complete_errand(token as u32, answer, &mut self.pool);
        self.enqueue(id);
    }

    fn look_after_queued(&mut self, connections_max: usize) -> io::Result<()> {
        for _ in 0..connections_max {
            let Some(id) = self.queue.pop_front() else { break };
            self.look_after(id)?;
        }
        Ok(())
    }

    /// Goes on with what was blocked, sends, and closes what is finished.
    fn look_after(&mut self, id: u32) -> io::Result<()> {
        let Some(mut stream) = self.connections[id as usize].take() else { return Ok(()) };
        stream.queued = false;
        stream.advance(&mut self.context());
        let budget = &self.shared.budget;
        let counters = &self.shared.figures.counters[self.index];
        let go_on = stream.send(&mut self.pool, counters, self.now);
        if stream.settle(budget) {
            // Another worker's client may sit on the memory, and that worker be asleep.
            self.shared.mailboxes.iter().for_each(Mailbox::wake);
        }
        if stream.is_finished() {
            stream.finish(budget, &mut self.pool, &mut self.scratch);
            self.free.push(id);
            self.shared.mailboxes[self.index].connections.fetch_sub(1, Ordering::Relaxed);
            self.shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        if let Some(interest) = stream.interest_change() {
            self.epoll.change(stream.fd(), u64::from(id), interest)?;
        }
        if stream.connection.waits() && !mem::replace(&mut stream.listed_as_waiting, true) {
            self.waiting.push(id);
        }
        if stream.connection.capped() {
            self.capped.push(id);
        }
        self.connections[id as usize] = Some(stream);
        if go_on {
            self.enqueue(id);
        }
        Ok(())
    }

    /// Those that wait for memory may find some now. While there is none, many that wait cost the others next to nothing.
    fn ask_again(&mut self) {
        let mut waiting = mem::take(&mut self.waiting);
        waiting.retain(|&id| {
            let Some(stream) = &mut self.connections[id as usize] else { return false };
            if !stream.connection.may_go_on(&self.shared.budget) {
                return true;
            }
            stream.listed_as_waiting = false;
            self.enqueue(id);
            false
        });
        self.waiting = waiting;
    }

    /// Rare things: listeners that had to pause, clients that hold what others wait for.
    fn look_around(&mut self) -> io::Result<()> {
        let stopping = self.shared.stopping.load(Ordering::Acquire);
        if !self.listening
            && !stopping
            && self.now != self.paused_at
            && let Err(error) = self.listen()
        {
            self.pause_listening(&error)?;
        }
        if self.shared.budget.someone_waits() && self.looked_at != self.now {
            self.looked_at = self.now;
            for id in 0..self.connections.len() {
                let Some(stream) = &mut self.connections[id] else { continue };
                if stream.is_stalled(self.now, &self.shared.limits) {
                    tracing::warn!("closed a client that held memory and neither sent nor read");
                    stream.say_why(
                        b"SERVER_ERROR closed: the rest of the request did not come, and others need the memory\r\n",
                    );
                    stream.connection.give_up();
                    self.enqueue(id as u32);
                }
            }
        }
        if self.shared.limits.idle_seconds > 0 && self.kicked_at != self.now {
            self.kicked_at = self.now;
            self.kick_idle();
        }
        Ok(())
    }

    fn kick_idle(&mut self) {
        for id in 0..self.connections.len() {
            let Some(stream) = &mut self.connections[id] else { continue };
            if stream.is_idle(self.now, &self.shared.limits) {
                count(&self.shared.figures.counters[self.index].idle_kicks, 1);
                stream.kick();
                self.enqueue(id as u32);
            }
        }
    }

    fn begin_stop(&mut self) -> io::Result<()> {
        self.stop_listening()?;
        self.door.iter().flat_map(|door| door.fds()).try_for_each(|fd| self.epoll.remove(fd))?;
        for id in 0..self.connections.len() {
            if let Some(stream) = &mut self.connections[id] {
                stream.stop_reading();
                self.enqueue(id as u32);
            }
        }
        Ok(())
    }
}
