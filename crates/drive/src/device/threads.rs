//! Threads of the device half: each polls its controllers, and sleeps while none of them has anything to do.
//!
//! ```text
//! host thread ── commands ─► ring ─► drive thread: controller ─► flash, programs
//!      ▲                                  │
//!      └──── poll ◄── ring ◄── completions┘
//! ```
//! 1. Each ring has one thread at either end, and as many places as a queue pair has credits, so it is never full. Those of a host in
//!    another process lie in memory that it shares ([`far_host`](super::far_host)); their ends wait here while there is no room.
//! 2. A thread that is about to sleep sets a flag, then looks once more ([`wakeup`](crate::wakeup)): busy ends make no system calls.
//! 3. It sleeps no longer than until the next deadline of a pipeline that one of its controllers runs.
//! 4. A controller is created and dropped on its thread. Detaching one waits until it is dropped, and its commands in flight with it.

use super::far_host::{FarHost, FarPair};
use super::{Controller, EndedCommand};
use crate::env::Env;
use crate::event::{is_readable_within, readable, sleep_on};
use crate::protocol::{Command, LeasedRanges};
use crate::wakeup::{Sleeper, Waker};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub const DRIVE_THREADS_MAX: usize = 64;
/// The longest sleep beside a host in another process that has no room for its ends, or is held back for another one.
const SLOW_HOST_SLEEP: Duration = Duration::from_millis(1);

/// A command on its way to a drive thread.
pub(crate) struct SubmittedCommand {
    pub command: Command,
    /// The host's slot of the command.
    pub slot: u32,
    pub leased: LeasedRanges,
}

/// A controller, and its ends of the rings.
pub(crate) struct AttachedController {
    // First, so that it is dropped, and its commands have ended, before the host hears of it.
    controller: Controller,
    number: usize,
    in_flight: usize,
    /// Ends that the controller has just given.
    batch: Vec<EndedCommand>,
    line: HostLine,
}

/// The drive's ends of a queue pair's rings.
enum HostLine {
    /// To another thread of this process.
    Near {
        commands: rtrb::Consumer<SubmittedCommand>,
        ended: rtrb::Producer<EndedCommand>,
        host: HostWaker,
    },
    Far(Box<FarHost>),
}

/// Wakes the host, also when its controller is dropped.
struct HostWaker(Waker);

impl Drop for HostWaker {
    fn drop(&mut self) {
        self.0.wake_in_any_case();
    }
}

impl HostLine {
    fn take(&mut self) -> Option<SubmittedCommand> {
        match self {
            HostLine::Near { commands, .. } => commands.pop().ok(),
            HostLine::Far(host) => host.take(),
        }
    }

    /// Whether the host slept, and is woken.
    fn give(&mut self, batch: &mut Vec<EndedCommand>) -> bool {
        match self {
            HostLine::Near { ended, host, .. } => {
                for end in batch.drain(..) {
                    let given = ended.push(end);
                    assert!(given.is_ok(), "more commands ended than the queue pair has credits");
                }
                host.0.wake()
            }
            HostLine::Far(host) => {
                batch.drain(..).for_each(|end| host.give(end));
                host.wake()
            }
        }
    }

    fn has_work(&mut self) -> bool {
        match self {
            HostLine::Near { commands, .. } => !commands.is_empty(),
            HostLine::Far(host) => host.has_work(),
        }
    }

    fn far(&self) -> Option<&FarHost> {
        match self {
            HostLine::Near { .. } => None,
            HostLine::Far(host) => Some(host),
        }
    }
}

impl AttachedController {
    pub fn new(
        controller: Controller,
        number: usize,
        commands: rtrb::Consumer<SubmittedCommand>,
        ended: rtrb::Producer<EndedCommand>,
        host: Waker,
    ) -> AttachedController {
        let line = HostLine::Near { commands, ended, host: HostWaker(host) };
        AttachedController { controller, number, in_flight: 0, batch: Vec::new(), line }
    }

    /// As [`AttachedController::new`], for a host in another process.
    pub fn of_other_process(controller: Controller, number: usize, pair: FarPair) -> AttachedController {
        let line = HostLine::Far(Box::new(FarHost::new(pair)));
        AttachedController { controller, number, in_flight: 0, batch: Vec::new(), line }
    }

    /// Takes submitted commands and gives ended ones. Returns whether there were any.
    pub fn advance(&mut self) -> bool {
        let share = self.line.far().and_then(FarHost::share).cloned();
        let Some(share) = share else { return self.advance_freely() };
        share.seen();
        let began_us = share.now_us();
        let is_busy = self.advance_freely();
        if is_busy {
            share.charge(share.now_us() - began_us);
        }
        is_busy
    }

    fn advance_freely(&mut self) -> bool {
        let mut is_busy = false;
        if let HostLine::Far(host) = &mut self.line {
            host.begin_round();
        }
        while let Some(SubmittedCommand { command, slot, leased }) = self.line.take() {
            // SAFETY: the caller of the host's `submit` kept its contract; or the host is another process, whose ranges were claimed.
            unsafe { self.controller.submit(command, slot, &leased) };
            self.in_flight += 1;
            is_busy = true;
        }
        if let HostLine::Far(host) = &mut self.line
            && host.send()
        {
            host.wake();
        }
        if self.in_flight == 0 {
            return is_busy;
        }
        self.controller.poll(&mut self.batch);
        if self.batch.is_empty() {
            return is_busy;
        }
        self.in_flight -= self.batch.len();
        if self.line.give(&mut self.batch) {
            self.controller.counters().woke_host();
        }
        true
    }

    /// For one thread that runs the host too: whether it may sleep now, as far as this one is concerned. Then it listens.
    pub fn sleeps(&mut self) -> bool {
        self.line.far().iter().for_each(|host| host.sleeper().arm());
        let may_sleep = self.in_flight == 0 && !self.must_go_on();
        if !may_sleep {
            self.line.far().iter().for_each(|host| host.sleeper().disarm());
        }
        may_sleep
    }

    /// Whether its host has woken it. Then it does not listen any more.
    pub fn is_woken(&self) -> bool {
        let Some(host) = self.line.far() else { return true };
        let is_woken = is_readable_within(host.fd(), Some(Duration::ZERO));
        if is_woken {
            host.sleeper().disarm();
        }
        is_woken
    }

    /// Whether its host has broken the form of its rings.
    pub fn is_broken(&self) -> bool {
        self.line.far().is_some_and(FarHost::is_broken)
    }

    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// As [`Controller::wait`].
    pub fn wait(&mut self, timeout: Option<Duration>) {
        if self.in_flight > 0 {
            self.controller.wait(timeout);
        }
    }

    /// Whether it must not sleep: there is something to do, or no descriptor will wake it for the commands in flight.
    fn must_go_on(&mut self) -> bool {
        self.line.has_work() || self.controller.is_ready() || self.in_flight > 0 && self.controller.is_deaf()
    }
}

enum Mail {
    Attach(Box<AttachedController>),
    /// Drop the controller, then send on `gone`.
    Detach {
        number: usize,
        gone: Sender<()>,
    },
}

/// A drive thread, as hosts see it.
#[derive(Clone)]
pub(crate) struct DriveThread {
    mail: Sender<Mail>,
    has_mail: Arc<AtomicBool>,
    waker: Waker,
}

impl DriveThread {
    pub fn attach(&self, controller: AttachedController) {
        self.send(Mail::Attach(Box::new(controller)));
    }

    /// Waits until the controller is gone.
    pub fn detach(&self, number: usize) {
        let (gone, is_gone) = channel();
        self.send(Mail::Detach { number, gone });
        // An error also means that it is gone: a thread that panicked has dropped its controllers.
        let _ = is_gone.recv();
    }

    /// Wakes the thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// To be called when commands were put into a ring. Whether the thread slept.
    pub fn wake(&self) -> bool {
        self.waker.wake()
    }

    fn send(&self, mail: Mail) {
        // A thread that panicked takes no mail; the rings show that it is gone.
        let _ = self.mail.send(mail);
        self.has_mail.store(true, Ordering::Release);
        self.waker.wake_in_any_case();
    }
}

/// The threads of a drive. They end when neither a drive nor a controller refers to them.
pub(crate) struct DriveThreads {
    threads: Vec<DriveThread>,
    handles: Vec<JoinHandle<()>>,
    attached: AtomicUsize,
}

impl DriveThreads {
    /// Each looks `polls` times more for something to do before it sleeps.
    ///
    /// # Errors
    /// The operating system's, when it has no more threads or descriptors.
    pub fn start(count: usize, polls: u32, env: &Env) -> io::Result<DriveThreads> {
        assert!((1..=DRIVE_THREADS_MAX).contains(&count), "{count} drive threads");
        let mut threads = DriveThreads { threads: Vec::new(), handles: Vec::new(), attached: AtomicUsize::new(0) };
        for number in 0..count {
            let (sleeper, has_mail) = (Sleeper::new()?, Arc::new(AtomicBool::new(false)));
            let (mail, inbox) = channel();
            threads.threads.push(DriveThread { mail, has_mail: has_mail.clone(), waker: sleeper.waker() });
            let (env, controllers, fds) = (env.clone(), Vec::new(), Vec::new());
            let work = DriveThreadWork { inbox, has_mail, sleeper, controllers, fds, polls, env };
            let thread = work.env.clone().spawn_drive_thread(&format!("drive-{number}"), move || work.run())?;
            threads.handles.push(thread);
        }
        Ok(threads)
    }

    /// A number for a new controller, and the thread to attach it to: each thread in turn.
    pub fn next(&self) -> (usize, DriveThread) {
        let number = self.attached.fetch_add(1, Ordering::Relaxed);
        (number, self.threads[number % self.threads.len()].clone())
    }
}

impl Drop for DriveThreads {
    fn drop(&mut self) {
        for DriveThread { mail, has_mail, waker } in self.threads.drain(..) {
            drop(mail); // Before it looks.
            has_mail.store(true, Ordering::Release);
            waker.wake_in_any_case();
        }
        for handle in self.handles.drain(..) {
            // A panic of the thread was reported by that thread.
            let _ = handle.join();
        }
    }
}

struct DriveThreadWork {
    inbox: Receiver<Mail>,
    has_mail: Arc<AtomicBool>,
    sleeper: Sleeper,
    controllers: Vec<AttachedController>,
    /// Descriptors that wake it: its own event, and those of its controllers.
    fds: Vec<libc::pollfd>,
    polls: u32,
    env: Env,
}

impl DriveThreadWork {
    fn run(mut self) {
        self.list_fds();
        let mut idle_polls = 0;
        loop {
            if self.has_mail.swap(false, Ordering::Acquire) && !self.read_mail() {
                return;
            }
            let mut is_busy = false;
            for controller in &mut self.controllers {
                is_busy |= controller.advance();
            }
            if is_busy {
                idle_polls = 0;
            } else if idle_polls < self.polls {
                idle_polls += 1;
                std::hint::spin_loop();
            } else {
                self.sleep();
            }
        }
    }

    /// Takes mail. Returns whether anybody may still send some.
    fn read_mail(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Mail::Attach(controller)) => self.controllers.push(*controller),
                Ok(Mail::Detach { number, gone }) => {
                    self.controllers.retain(|controller| controller.number != number);
                    // The sender still waits for this.
                    let _ = gone.send(());
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        self.list_fds();
        true
    }

    fn list_fds(&mut self) {
        self.fds.clear();
        self.fds.push(readable(self.sleeper.fd()));
        self.fds.extend(self.controllers.iter().filter_map(|attached| attached.controller.wake_fd()).map(readable));
        self.fds
            .extend(self.controllers.iter().filter_map(|attached| attached.line.far()).map(|host| readable(host.fd())));
    }

    /// To be called after a round of polls that gave nothing: from then on the controllers' flash raises its events.
    fn sleep(&mut self) {
        self.sleepers().for_each(Sleeper::arm);
        if self.has_mail.load(Ordering::Acquire) || self.controllers.iter_mut().any(AttachedController::must_go_on) {
            self.sleepers().for_each(Sleeper::disarm);
            std::thread::yield_now();
            return;
        }
        let timeout = self.until_deadline();
        sleep_on(&mut self.fds, timeout);
        self.sleepers().for_each(Sleeper::disarm);
        if self.fds[0].revents != 0 {
            self.sleeper.clear();
        }
    }

    /// Its own, and those of hosts in other processes.
    fn sleepers(&self) -> impl Iterator<Item = &Sleeper> {
        let far = self.controllers.iter().filter_map(|attached| attached.line.far());
        [&self.sleeper].into_iter().chain(far.map(FarHost::sleeper))
    }

    /// Time until the next deadline. The clock is read only if there is one.
    fn until_deadline(&self) -> Option<Duration> {
        let deadlines = self.controllers.iter().filter_map(|attached| attached.controller.deadline_next_us());
        let next =
            deadlines.min().map(|deadline_us| Duration::from_micros(deadline_us.saturating_sub(self.env.now_us())));
        let is_soon = self.controllers.iter().filter_map(|attached| attached.line.far()).any(FarHost::must_look_again);
        if is_soon { Some(next.map_or(SLOW_HOST_SLEEP, |next| next.min(SLOW_HOST_SLEEP))) } else { next }
    }
}
