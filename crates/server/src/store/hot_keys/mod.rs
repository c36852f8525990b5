//! Keeps hot items hot over a restart: a list of the keys whose items are in DRAM is saved regularly, and DRAM is warmed from it when the
//! server starts.
//!
//! ```text
//! start: list ─► Store::warm ─► DRAM        every so often, and at the end: DRAM ─► Store::hot_keys ─► another file ─► list
//! ```
//! The list is a hint and holds no values: items are read from flash in their state at the start. A torn or damaged list, or one of another
//! store, is skipped and logged. A list is replaced when a new one is complete and durable, and never before DRAM has been warmed from it.
//!
//! Threads: one of its own. Requests are served meanwhile.

// The server is above the simulator: this is a system thread, and reads the clock.
#![allow(clippy::disallowed_methods)]

pub mod list;

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use list::{HotListError, ListReader, ListWriter};
use tapetum::{Stats, Warmed};

use crate::store::unfinished;

/// However often it is to be saved, a list is written no faster than this on average.
const SAVE_BYTES_PER_SECOND: u64 = 1 << 20;
/// Bytes of the tier for each key that is in memory at once while a list is read: the keys take a sixteenth of the tier, which is still
/// empty then.
const TIER_BYTES_PER_KEY: u64 = 256;
/// The most keys at once. Among them the order is that of flash, not of heat.
const KEYS_AT_ONCE_MAX: u64 = 256 << 10;
/// The most keys of a list: 64 MiB, which are written and made durable in about a second.
const KEYS_MAX: u64 = 4 << 20;
/// Pause while others use the memory for reads.
const MEMORY_WAIT: Duration = Duration::from_millis(1);

/// The path of the list, and how often it is saved.
#[derive(Clone, Debug)]
pub struct HotKeys {
    pub path: PathBuf,
    pub every: Duration,
}

/// Progress of warming, for `stats`.
#[derive(Debug, Default)]
pub struct WarmProgress {
    pub warming: AtomicU64,
    pub listed: AtomicU64,
    pub warmed: AtomicU64,
    pub gone: AtomicU64,
    pub saved: AtomicU64,
    pub saves: AtomicU64,
}

impl WarmProgress {
    fn note(&self, warmed: &Warmed) {
        self.warmed.store(warmed.put + warmed.there, Ordering::Relaxed);
        self.gone.store(warmed.gone + warmed.unreadable, Ordering::Relaxed);
    }
}

/// A handle to the thread.
pub struct Keeper {
    // Dropping it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread, which warms DRAM from the list, and then saves it regularly.
    pub fn start(store: tapetum::Store, hot_keys: HotKeys, progress: Arc<WarmProgress>) -> io::Result<Keeper> {
        let (stop, stopped) = channel();
        progress.warming.store(1, Ordering::Relaxed);
        let errand = HotKeyKeeper { store, hot_keys, progress, stopped, saved_at: None };
        let thread = std::thread::Builder::new().name("hot-keys".into()).spawn(move || errand.run())?;
        Ok(Keeper { stop, thread })
    }

    /// Saves the list for the last time, unless warming is not finished.
    pub fn stop(self) {
        drop(self.stop);
        // A panic was reported by the thread; without a new list, only warming is lost.
        let _ = self.thread.join();
    }
}

struct HotKeyKeeper {
    store: tapetum::Store,
    hot_keys: HotKeys,
    progress: Arc<WarmProgress>,
    stopped: Receiver<()>,
    /// Number of gets, as `asked` counts them, when the list was last saved.
    saved_at: Option<u64>,
}

/// The thread was told to stop, or could not read the list, which then stays unchanged.
struct Stopped;

/// An error, with advice, if the path holds something else than a list, which must not be replaced.
pub fn check_place(path: &Path) -> Result<(), String> {
    check_folder(path)?;
    check_file(path, list::is_list)?;
    check_file(&unfinished::path_of(path), list::may_be_unfinished)
}

fn check_file(path: &Path, is_ours: impl Fn(&Path) -> io::Result<bool>) -> Result<(), String> {
    let shown = path.display();
    let file = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => {
            other.map_err(|error| format!("{shown} cannot be looked at: {error}; give --hot-keys another file"))?
        }
    };
    if !file.is_file() {
        return Err(format!("{shown} is no file: give --hot-keys a file of its own"));
    }
    match file.len() == 0 || is_ours(path).unwrap_or(false) {
        true => Ok(()),
        false => Err(format!(
            "{shown} is something else than a list of hot keys: give --hot-keys a file of its own; nothing was written"
        )),
    }
}

fn check_folder(path: &Path) -> Result<(), String> {
    let folder = unfinished::folder_of(path);
    match folder.is_dir() {
        true => Ok(()),
        false => Err(format!("there is no folder {}: make it, or give --hot-keys another file", folder.display())),
    }
}

impl HotKeyKeeper {
    fn run(mut self) {
        let begun = Instant::now();
        let outcome = self.warm();
        self.progress.warming.store(0, Ordering::Relaxed);
        match outcome {
            Ok(Some((warmed, listed))) => tracing::info!(
                "DRAM has {} of the {listed} items that were hot before, after {:.1} s",
                warmed.put + warmed.there,
                begun.elapsed().as_secs_f64()
            ),
            Ok(None) => {}
            Err(Stopped) => return,
        }
        let mut wait = self.hot_keys.every;
        while self.stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let bytes = self.save_if_changed();
            wait = self.hot_keys.every.max(Duration::from_secs(bytes / SAVE_BYTES_PER_SECOND));
        }
        self.save_if_changed();
    }

    /// Warms DRAM. Returns the numbers of keys by what happened to them, if there is a list.
    fn warm(&self) -> Result<Option<(Warmed, u64)>, Stopped> {
        let path = self.hot_keys.path.display();
        let mut reader = match self.open_list() {
            Ok(Some(reader)) => reader,
            Ok(None) => return Ok(None),
            Err(error @ HotListError::Io(_)) => {
                tracing::warn!("{path}: {error}; DRAM is not warmed, and the list stays as it is");
                return Err(Stopped);
            }
            Err(error) => {
                tracing::warn!("{path}: {error}; DRAM is not warmed, and a new list will replace it");
                return Ok(None);
            }
        };
        self.progress.listed.store(reader.keys(), Ordering::Relaxed);
        let keys_max = (self.store.stats().tier_bytes / TIER_BYTES_PER_KEY).min(KEYS_AT_ONCE_MAX) as usize;
        let mut sum = Warmed::default();
        loop {
            let mut keys = Vec::new();
            let read = reader.next(&mut keys, keys_max);
            if keys.is_empty() && read.is_ok() {
                return Ok(Some((sum, reader.keys())));
            }
            let before = sum;
            match self.store.warm(keys) {
                Ok(warming) => sum = self.warm_some(warming, sum)?,
                Err(error) => {
                    tracing::warn!("DRAM is not warmed, and the list stays as it is: {error}");
                    return Err(Stopped);
                }
            }
            if let Err(error) = read {
                tracing::warn!("{path}: {error}; the rest of it is passed over");
                return Ok(Some((sum, reader.keys())));
            }
            if sum.put == before.put && sum.no_room > before.no_room {
                return Ok(Some((sum, reader.keys())));
            }
        }
    }

    fn open_list(&self) -> Result<Option<ListReader<File>>, HotListError> {
        let file = match File::open(&self.hot_keys.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let bytes = file.metadata()?.len();
        ListReader::new(file, bytes, self.store.id()).map(Some)
    }

    fn warm_some(&self, mut warming: tapetum::Warming, before: Warmed) -> Result<Warmed, Stopped> {
        loop {
            let is_over = warming.step();
            let sum = before + warming.warmed();
            self.progress.note(&sum);
            if is_over {
                return Ok(sum);
            }
            let pause = if warming.waits_for_memory() { MEMORY_WAIT } else { Duration::ZERO };
            if self.stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return Err(Stopped);
            }
            warming.wait();
        }
    }

    /// Saves the list, if there were gets since the last save. Returns its length in bytes.
    fn save_if_changed(&mut self) -> u64 {
        let asked = asked(&self.store.stats());
        if asked == self.saved_at.unwrap_or(0) {
            return 0;
        }
        match save(&self.store, &self.hot_keys.path) {
            Ok((keys, bytes)) => {
                self.saved_at = Some(asked);
                self.progress.saved.store(keys, Ordering::Relaxed);
                self.progress.saves.fetch_add(1, Ordering::Relaxed);
                bytes
            }
            Err(error) => {
                tracing::warn!("the list of hot keys is not saved to {}: {error}", self.hot_keys.path.display());
                0
            }
        }
    }
}

/// Number of gets that found an item and may have changed the list.
fn asked(stats: &Stats) -> u64 {
    stats.get_from_tier + stats.get_from_flash
}

/// Writes a new list and replaces the old one. Returns its keys and bytes.
fn save(store: &tapetum::Store, path: &Path) -> io::Result<(u64, u64)> {
    let file = unfinished::begin(path, list::may_be_unfinished)?;
    let replaced = write(store, &file).and_then(|written| {
        // Something else may have been put there since the server started.
        check_file(path, list::is_list).map_err(io::Error::other)?;
        unfinished::finish(path)?;
        Ok(written)
    });
    replaced.inspect_err(|_| {
        // The next save overwrites a file that stays behind.
        let _ = fs::remove_file(unfinished::path_of(path));
    })
}

fn write(store: &tapetum::Store, file: &File) -> io::Result<(u64, u64)> {
    let mut writer = ListWriter::new(file, store.id())?;
    let mut failed = None;
    store.hot_keys(|keys| match keys.iter().try_for_each(|key| writer.push(*key)) {
        Ok(()) if writer.keys() >= KEYS_MAX => ControlFlow::Break(()),
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let (file, keys) = writer.finish()?;
    file.sync_all()?;
    Ok((keys, file.metadata()?.len()))
}
