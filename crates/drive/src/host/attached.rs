//! A partition of a drive in another process, as its host has it: the connection, the questions over it, and its end.
//!
//! When the connection ends, whoever waits for a queue pair is woken, and all that was on its way ends with an error. The next
//! [`Drive::over`](super::Drive::over) attaches anew: nothing is submitted twice, a store recovers.
//!
//! Threads: any, one question at a time; and one that waits for the end of the connection.

use crate::cpu::DriveUsage;
use crate::env::Env;
use crate::flash::{Flash, FlashError, FlashQueue, Health};
use crate::link::VERSION;
use crate::link::frame::{AGAIN, CREATE, Frame, Kind, Refusal, TAKE_OVER};
use crate::locks::whole;
use crate::memory::{BLOCK_BYTES, LocalMemory, PairMemory, SharedFile};
use crate::process::ProcessMark;
use crate::protocol::Identity;
use crate::wakeup::Waker;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// How a partition is attached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attaching {
    /// Makes it with so many bytes, if it is not there.
    pub create_bytes: Option<u64>,
    /// Takes it from the host that has it.
    pub take_over: bool,
}

/// The flash of a partition.
pub struct AttachedFlash {
    /// The socket, and the partition's name behind it.
    path: PathBuf,
    socket: PathBuf,
    name: String,
    /// Whether its store was made whole before it was attached.
    was_made: bool,
    attachment: Mutex<Arc<Attachment>>,
    /// By which the drive knows this host again.
    host: u64,
    env: Env,
}

impl AttachedFlash {
    /// Attaches partition `name` of the drive that listens at `socket`.
    ///
    /// # Errors
    /// [`FlashError::NotFound`] if there is no such partition and none is to be made, [`FlashError::Held`] if another host has it, and
    /// what the drive says.
    pub fn attach(socket: &Path, name: &str, attaching: Attaching, env: &Env) -> Result<AttachedFlash, FlashError> {
        let path = socket.join(name);
        let host = env.random_u64();
        let (attachment, was_made) = Attachment::connect(&path, socket, name, (attaching, host, false), env)?;
        let (attachment, env) = (Mutex::new(attachment), env.clone());
        Ok(AttachedFlash { path, socket: socket.into(), name: name.into(), was_made, attachment, host, env })
    }

    /// Whether somebody has made a store there, whole.
    pub fn was_made(&self) -> bool {
        self.was_made
    }

    /// The store there is whole.
    ///
    /// # Errors
    /// An error that the drive tells.
    pub fn say_made(&self) -> Result<(), FlashError> {
        self.current().ask(Frame::new(Kind::Made, []), &[]).map(drop).map_err(|error| self.error(&error))
    }

    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    fn current(&self) -> Arc<Attachment> {
        whole(self.attachment.lock()).clone()
    }

    /// The connection; a new one, if the last has ended.
    pub(super) fn attachment(&self) -> io::Result<Arc<Attachment>> {
        let mut current = whole(self.attachment.lock());
        if current.is_lost() {
            let AttachedFlash { path, socket, name, host, env, .. } = self;
            let connected = Attachment::connect(path, socket, name, (Attaching::default(), *host, true), env);
            *current = connected.map_err(io::Error::other)?.0;
        }
        Ok(current.clone())
    }

    fn error(&self, error: &io::Error) -> FlashError {
        FlashError::Drive { path: self.path.clone(), why: error.to_string() }
    }
}

impl Flash for AttachedFlash {
    fn capacity_bytes(&self) -> u64 {
        self.current().capacity_bytes.load(Ordering::Relaxed)
    }

    fn grow(&self, capacity_bytes: u64) -> Result<(), FlashError> {
        let attachment = self.current();
        let answer = attachment.ask_or_refused(Frame::new(Kind::Grow, [capacity_bytes]), &[]);
        let answer = answer.map_err(|error| self.error(&error))?;
        match (answer.kind, Refusal::of_number(answer.numbers[0])) {
            (Kind::Done, _) => attachment.capacity_bytes.store(answer.numbers[0], Ordering::Relaxed),
            (_, Refusal::NoSpace) => {
                return Err(FlashError::NoSpace { path: self.path.clone(), needed_bytes: answer.numbers[1] });
            }
            _ => return Err(FlashError::Drive { path: self.path.clone(), why: answer.shown_text() }),
        }
        Ok(())
    }

    fn health(&self) -> Health {
        if self.current().is_lost() { Health::Away } else { Health::Sound }
    }

    fn sector_bytes(&self) -> u32 {
        self.current().sector_bytes
    }

    fn atomic_write_bytes(&self) -> u32 {
        self.current().atomic_write_bytes
    }

    fn describe(&self) -> String {
        let described = &self.current().described;
        format!("{described}, by the drive at {}", self.socket.display())
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn elsewhere(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn open_queue(&self, _memory: &PairMemory, _depth: u32) -> io::Result<Box<dyn FlashQueue>> {
        Err(io::Error::other(
            "a drive in another process is reached by its queue pairs alone: serve this store, and ask the server",
        ))
    }
}

/// A connection to a drive.
pub(super) struct Attachment {
    state: Arc<AttachmentState>,
    capacity_bytes: AtomicU64,
    sector_bytes: u32,
    atomic_write_bytes: u32,
    described: String,
    /// Held while a question waits for its answer.
    asks: Mutex<()>,
    watch: Option<JoinHandle<()>>,
    made: ProcessMark,
}

struct AttachmentState {
    socket: OwnedFd,
    is_lost: AtomicBool,
    /// Wakes each queue pair, by its number.
    wakers: Mutex<BTreeMap<u64, Waker>>,
}

impl AttachmentState {
    fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        // It may have ended already. If not, the drive is to hear of it.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        whole(self.wakers.lock()).values().for_each(Waker::wake_in_any_case);
    }
}

impl Attachment {
    fn connect(
        path: &Path,
        socket_path: &Path,
        name: &str,
        (attaching, host, again): (Attaching, u64, bool),
        env: &Env,
    ) -> Result<(Arc<Attachment>, bool), FlashError> {
        let failed = |why: String| FlashError::Drive { path: path.into(), why };
        let socket = connect(socket_path).map_err(|error| {
            failed(match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "this user may not use its socket: run the drive as this user, or with --any-user as root".into()
                }
                _ => format!("nobody answers at its socket ({error}): start it (tapetum drive), or give its path"),
            })
        })?;
        trust(&socket).map_err(failed)?;
        let Attaching { create_bytes, take_over } = attaching;
        let flags = [(take_over, TAKE_OVER), (create_bytes.is_some(), CREATE), (again, AGAIN)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
        let asked = Frame::new(Kind::Attach, [VERSION, flags, create_bytes.unwrap_or(0), host]).with_text(name);
        let answer = exchange(&socket, asked, &[]).map_err(|error| failed(error.to_string()))?;
        if answer.kind == Kind::Refused {
            let why = answer.shown_text();
            return Err(match Refusal::of_number(answer.numbers[0]) {
                Refusal::NotFound => FlashError::NotFound { path: path.into() },
                Refusal::InUse => FlashError::Held { path: path.into(), why },
                Refusal::NoSpace => FlashError::NoSpace { path: path.into(), needed_bytes: answer.numbers[1] },
                Refusal::Version | Refusal::Other => failed(why),
            });
        }
        let [capacity_bytes, sector_bytes, atomic_bytes, _epoch, is_made, ..] = answer.numbers;
        let (Ok(sector_bytes), Ok(atomic_write_bytes)) = (u32::try_from(sector_bytes), u32::try_from(atomic_bytes))
        else {
            return Err(failed("its answer has sizes that no drive has".into()));
        };
        if !sector_bytes.is_power_of_two() || sector_bytes < 512 || capacity_bytes % u64::from(sector_bytes) != 0 {
            return Err(failed("its answer has sizes that no drive has".into()));
        }
        let state = AttachmentState { socket, is_lost: AtomicBool::new(false), wakers: Mutex::default() };
        let state = Arc::new(state);
        let watched = state.clone();
        let watch = env.spawn("drive-watch", move || watch(&watched)).map_err(|error| failed(error.to_string()))?;
        let attachment = Attachment {
            state,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            sector_bytes,
            atomic_write_bytes,
            described: answer.shown_text(),
            asks: Mutex::new(()),
            watch: Some(watch),
            made: ProcessMark::now(),
        };
        Ok((Arc::new(attachment), is_made != 0))
    }

    pub fn is_lost(&self) -> bool {
        self.state.is_lost.load(Ordering::Acquire)
    }

    /// The drive does not keep to the form: nothing more that it says counts.
    pub fn break_off(&self, how: &str) {
        if !self.is_lost() {
            tracing::error!("{}: {how}; its connection is ended", self.described);
            self.state.lose();
        }
    }

    /// Wakes a queue pair when the connection ends, or has.
    pub fn wake_at_end(&self, pair: u64, waker: Waker) {
        let mut wakers = whole(self.state.wakers.lock());
        if self.is_lost() {
            waker.wake_in_any_case();
        }
        wakers.insert(pair, waker);
    }

    /// The queue pair is dropped: waits until nothing of it is on its way.
    pub fn close_pair(&self, pair: u64) {
        whole(self.state.wakers.lock()).remove(&pair);
        if !self.is_lost() {
            // If the connection ends now, the drive drains it by itself.
            let _ = self.ask(Frame::new(Kind::Unpair, [pair]), &[]);
        }
    }

    /// Asks; a refusal is an error.
    pub fn ask(&self, question: Frame, files: &[BorrowedFd<'_>]) -> io::Result<Frame> {
        let answer = self.ask_or_refused(question, files)?;
        if answer.kind == Kind::Refused { Err(io::Error::other(answer.shown_text())) } else { Ok(answer) }
    }

    fn ask_or_refused(&self, question: Frame, files: &[BorrowedFd<'_>]) -> io::Result<Frame> {
        let _asking = whole(self.asks.lock());
        if self.is_lost() {
            return Err(gone());
        }
        exchange(&self.state.socket, question, files)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // A forked child has the same connection, and not the thread.
        if !self.made.is_here() {
            return;
        }
        // It may have ended already.
        let _ = rustix::net::shutdown(&self.state.socket, Shutdown::Both);
        if let Some(watch) = self.watch.take() {
            // A panic of the thread was reported by that thread.
            let _ = watch.join();
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the drive's process has ended, or has given the partition to another host",
    )
}

fn exchange(socket: &OwnedFd, question: Frame, files: &[BorrowedFd<'_>]) -> io::Result<Frame> {
    question.send(socket, files).map_err(|_| gone())?;
    match Frame::receive(socket)?.ok_or_else(gone)? {
        answer @ Frame { kind: Kind::Done | Kind::Refused, .. } => Ok(answer),
        other => Err(io::Error::other(format!("the drive answered with a question ({:?})", other.kind))),
    }
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Results are read where the drive has them, so it must be this user's own, or the system's.
fn trust(socket: &OwnedFd) -> Result<(), String> {
    let peer = rustix::net::sockopt::socket_peercred(socket).map_err(|error| error.to_string())?;
    let (theirs, ours) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
    if theirs == ours || theirs == 0 {
        return Ok(());
    }
    Err(format!("it runs as user {theirs}, and this is user {ours}: a host trusts a drive of its own user, or of root"))
}

fn watch(state: &AttachmentState) {
    loop {
        let mut polled = [PollFd::new(&state.socket, PollFlags::RDHUP)];
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return state.lose(),
        }
    }
}

/// Local memory of a drive in another process, with the programs there.
pub(super) struct AttachedMemory {
    pub attachment: Arc<Attachment>,
    /// The drive's number of it.
    pub number: u64,
    pub identity: Identity,
}

impl AttachedMemory {
    /// Asks for local memory of `bytes`, rounded up to whole blocks.
    pub(super) fn new(attachment: Arc<Attachment>, bytes: usize) -> io::Result<(AttachedMemory, LocalMemory)> {
        let blocks = bytes.div_ceil(BLOCK_BYTES).max(1);
        let bytes = blocks * BLOCK_BYTES;
        let window = SharedFile::new("tapetum-window", bytes)?;
        let mut answer = attachment.ask(Frame::new(Kind::Memory, [bytes as u64]), &[window.file()])?;
        let [number, bytes_all, ..] = answer.numbers;
        // Without one, results are copied to the window.
        let file = answer.files.pop();
        let bytes_all = usize::try_from(bytes_all).ok().filter(|all| *all >= bytes);
        let bytes_all = bytes_all.ok_or_else(|| io::Error::other("the drive gave less memory than was asked for"))?;
        let file = file.map(|file| SharedFile::of_other(file, bytes_all, false)).transpose()?;
        let identity = Identity::decode(&answer.text).map_err(io::Error::other)?;
        let blocks = u32::try_from(blocks).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let local = LocalMemory::of_other_process(file, window, blocks);
        Ok((AttachedMemory { attachment, number, identity }, local))
    }

    /// The usage of the drive's process, and the counters that it has of this, encoded. `None`: it is gone.
    pub(super) fn counters(&self) -> Option<(DriveUsage, Vec<u8>)> {
        let answer = self.attachment.ask(Frame::new(Kind::Counters, [self.number]), &[]).ok()?;
        let [cpu_us, resident_bytes, ..] = answer.numbers;
        Some((DriveUsage { cpu_us, resident_bytes }, answer.text))
    }
}

impl Drop for AttachedMemory {
    fn drop(&mut self) {
        // The drive forgets it by itself when the connection ends.
        let _ = self.attachment.ask(Frame::new(Kind::Forget, [self.number]), &[]);
    }
}
