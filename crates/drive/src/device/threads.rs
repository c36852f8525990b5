//! Threads of the device half: each polls its controllers, and sleeps while none of them has anything to do.
//!
//! ```text
//! host thread ── commands ─► ring ─► drive thread: controller ─► flash, programs
//!      ▲                                  │
//!      └──── poll ◄── ring ◄── completions┘
//! ```
//! 1. Each ring has one thread at either end, and as many places as a queue pair has credits, so it is never full.
//! 2. A thread that is about to sleep sets a flag, then looks once more ([`wakeup`](crate::wakeup)): busy ends make no system calls.
//! 3. It sleeps no longer than until the next deadline of a pipeline that one of its controllers runs.
//! 4. A controller is created and dropped on its thread. Detaching one waits until it is dropped, and its commands in flight with it.

use super::{Controller, EndedCommand};
use crate::env::Env;
use crate::event::{readable, sleep_on};
use crate::protocol::{Command, LeasedRanges};
use crate::wakeup::{Sleeper, Waker};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub const DRIVE_THREADS_MAX: usize = 64;

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
    commands: rtrb::Consumer<SubmittedCommand>,
    ended: rtrb::Producer<EndedCommand>,
    in_flight: usize,
    /// Ends that the controller has just given.
    batch: Vec<EndedCommand>,
    host: HostWaker,
}

/// Wakes the host, also when its controller is dropped.
struct HostWaker(Waker);

impl Drop for HostWaker {
    fn drop(&mut self) {
        self.0.wake_in_any_case();
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
        let host = HostWaker(host);
        AttachedController { controller, number, commands, ended, in_flight: 0, batch: Vec::new(), host }
    }

    /// Takes submitted commands and gives ended ones. Returns whether there were any.
    fn advance(&mut self) -> bool {
        let mut is_busy = false;
        while let Ok(SubmittedCommand { command, slot, leased }) = self.commands.pop() {
            // SAFETY: the caller of the host's `submit` kept its contract.
            unsafe { self.controller.submit(command, slot, &leased) };
            self.in_flight += 1;
            is_busy = true;
        }
        if self.in_flight == 0 {
            return is_busy;
        }
        self.controller.poll(&mut self.batch);
        if self.batch.is_empty() {
            return is_busy;
        }
        self.in_flight -= self.batch.len();
        for ended in self.batch.drain(..) {
            let given = self.ended.push(ended);
            assert!(given.is_ok(), "more commands ended than the queue pair has credits");
        }
        self.host.0.wake();
        true
    }

    /// Whether it must not sleep: there is something to do, or no descriptor will wake it for the commands in flight.
    fn must_go_on(&self) -> bool {
        !self.commands.is_empty() || self.controller.is_ready() || self.in_flight > 0 && self.controller.is_deaf()
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

    /// To be called when commands were put into a ring.
    pub fn wake(&self) {
        self.waker.wake();
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
    /// # Errors
    /// The operating system's, when it has no more threads or descriptors.
    pub fn start(count: usize, env: &Env) -> io::Result<DriveThreads> {
        assert!((1..=DRIVE_THREADS_MAX).contains(&count), "{count} drive threads");
        let mut threads = DriveThreads { threads: Vec::new(), handles: Vec::new(), attached: AtomicUsize::new(0) };
        for number in 0..count {
            let (sleeper, has_mail) = (Sleeper::new()?, Arc::new(AtomicBool::new(false)));
            let (mail, inbox) = channel();
            threads.threads.push(DriveThread { mail, has_mail: has_mail.clone(), waker: sleeper.waker() });
            let (env, controllers, fds) = (env.clone(), Vec::new(), Vec::new());
            let work = DriveThreadWork { inbox, has_mail, sleeper, controllers, fds, env };
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
    env: Env,
}

impl DriveThreadWork {
    fn run(mut self) {
        self.list_fds();
        loop {
            if self.has_mail.swap(false, Ordering::Acquire) && !self.read_mail() {
                return;
            }
            let mut is_busy = false;
            for controller in &mut self.controllers {
                is_busy |= controller.advance();
            }
            if !is_busy {
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
    }

    /// To be called after a round of polls that gave nothing: from then on the controllers' flash raises its events.
    fn sleep(&mut self) {
        self.sleeper.arm();
        if self.has_mail.load(Ordering::Acquire) || self.controllers.iter().any(AttachedController::must_go_on) {
            self.sleeper.disarm();
            std::thread::yield_now();
            return;
        }
        let timeout = self.until_deadline();
        sleep_on(&mut self.fds, timeout);
        self.sleeper.disarm();
        if self.fds[0].revents != 0 {
            self.sleeper.clear();
        }
    }
    /// Time until the next deadline. The clock is read only if there is one.
    fn until_deadline(&self) -> Option<Duration> {
        let deadlines = self.controllers.iter().filter_map(|attached| attached.controller.deadline_next_us());
        deadlines.min().map(|deadline_us| Duration::from_micros(deadline_us.saturating_sub(self.env.now_us())))
    }
}
