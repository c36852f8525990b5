//! Desks: the tools of queries of one key, kept from one to the next, as queue pairs and local memory are dear beside a single read.
//!
//! ```text
//!           ┌─ kept ─┐   take                                 give
//! desks ────┤        ├──────────► query: pair, work, copier ──────────► desks
//!           └─ made ─┘  (none: waits for one, or for memory)
//! ```
//! 1. A desk is lent to one query at a time, and comes back with nothing in flight.
//! 2. Once there was one, there is always one, with local memory of its own: however much others take of it, a query gets its turn.
//! 3. At most [`DESKS_MAX`] are lent at a time, and few are kept: so many that they are a small share of local memory.
//!
//! Threads: any.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tapetum_base::engine::scan_layout::PageCopier;
use tapetum_base::error::Error;
use tapetum_base::media::io::lock;
use tapetum_drive::locks::whole;
use tapetum_drive::{Drive, Lease, LocalBuffer, QueuePair};
use tapetum_kernels::ordered::NODE_BYTES;

/// Queries of one key that work at the same time.
const DESKS_MAX: usize = 16;
/// Kept desks take about one in this many bytes of local memory.
const KEPT_SHARE: usize = 16;
/// Bytes of a desk's buffer: for a query, its input, and its result.
pub(crate) const DESK_WORK_BYTES: usize = 64 << 10;
/// A pipeline brings a node, or a value of up to 16 KiB, at a time.
const PART_BYTES: u32 = 20 << 10;
/// Commands of the flash at once: a node, or a piece of a value that is read ahead.
const FLASH_DEPTH: u32 = 4;
/// A desk's share of local memory, with the parts of its pair: of which a pipeline has at most a dozen.
const DESK_BYTES: usize = DESK_WORK_BYTES + NODE_BYTES + 12 * PART_BYTES as usize;

#[derive(Default)]
struct DesksState {
    kept: Vec<KeyDesk>,
    lent: usize,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct KeyDesks {
    state: Mutex<DesksState>,
    given: Condvar,
}

struct KeyDesk {
    pair: QueuePair,
    work: LocalBuffer,
    copier: PageCopier,
}

/// A queue pair and room for a scan: its own, or those of a desk, which they go back to when this is dropped.
pub(crate) struct ScanTools {
    /// `None`: this is being dropped.
    pair: Option<QueuePair>,
    /// A desk's, while no pipeline has it.
    pub work: Option<LocalBuffer>,
    /// A desk's, while no layout has it.
    pub copier: PageCopier,
    desks: Option<Arc<KeyDesks>>,
}

impl KeyDesks {
    /// A desk, if there is one now: none is free, and local memory has no room for another.
    pub(crate) fn take(self: &Arc<Self>, drive: &Drive) -> Result<Option<ScanTools>, Error> {
        let kept = {
            let mut state = lock(&self.state);
            if state.lent == DESKS_MAX {
                return Ok(None);
            }
            state.lent += 1;
            state.kept.pop()
        };
        let desk = match kept {
            Some(desk) => Ok(Some(desk)),
            None => KeyDesk::new(drive),
        };
        if !matches!(desk, Ok(Some(_))) {
            lock(&self.state).lent -= 1;
        }
        let tools = |KeyDesk { pair, work, copier }| {
            let desks = Some(self.clone());
            ScanTools { pair: Some(pair), work: Some(work), copier, desks }
        };
        Ok(desk?.map(tools))
    }

    /// Waits until a desk came back, or a moment: nothing signals that memory is free.
    pub fn wait(&self) {
        drop(whole(self.given.wait_timeout(lock(&self.state), Duration::from_millis(1))));
    }

    /// Takes a desk back; `None` if its memory is lost.
    fn give(&self, desk: Option<KeyDesk>) {
        let mut state = lock(&self.state);
        state.lent -= 1;
        if let Some(desk) = desk {
            let kept_max = desk.pair.drive().local().bytes_total() / KEPT_SHARE / DESK_BYTES;
            if state.kept.len() < kept_max.clamp(1, DESKS_MAX) {
                state.kept.push(desk);
            }
        }
        drop(state);
        self.given.notify_one();
    }
}

impl KeyDesk {
    fn new(drive: &Drive) -> Result<Option<KeyDesk>, Error> {
        let local = drive.local();
        let (Some(work), Some(page)) = (local.allocate(DESK_WORK_BYTES), local.allocate(NODE_BYTES)) else {
            return Ok(None);
        };
        let pair =
            drive.queue_pair_with_parts(FLASH_DEPTH, PART_BYTES).map_err(|error| Error::Io(error.to_string()))?;
        let copier = PageCopier { pair: None, room: Some(page) };
        Ok(pair.map(|pair| KeyDesk { pair, work, copier }))
    }
}

impl ScanTools {
    /// Tools with a pair that is of nobody else.
    pub fn of(pair: QueuePair) -> ScanTools {
        ScanTools { pair: Some(pair), work: None, copier: PageCopier::default(), desks: None }
    }

    pub fn pair(&mut self) -> &mut QueuePair {
        let Some(pair) = &mut self.pair else { unreachable!("it goes when this is dropped") };
        pair
    }

    /// A buffer for a pipeline: the desk's, if it is long enough.
    pub fn take_work(&mut self, drive: &Drive, bytes: usize) -> Option<LocalBuffer> {
        match self.work.take_if(|work| work.len() >= bytes) {
            Some(work) => Some(work),
            None => drive.local().allocate(bytes),
        }
    }

    /// Waits a moment, in which others may give local memory back.
    pub fn wait_for_memory(&self) {
        self.desks.as_ref().map_or_else(std::thread::yield_now, |desks| desks.wait());
    }

    /// Takes back the tools with which a layout copied pages.
    pub fn take_copier(&mut self, copier: &mut PageCopier) {
        let PageCopier { pair, room } = std::mem::take(copier);
        self.copier.pair = pair;
        // Copies that a pipeline had came back before.
        self.copier.room = self.copier.room.take().or(room);
    }

    /// Takes a buffer back, if it is the desk's.
    pub fn put_back(&mut self, buffer: LocalBuffer) {
        let is_desk = self.desks.is_some();
        match buffer.len() {
            DESK_WORK_BYTES if is_desk => self.work = Some(buffer),
            NODE_BYTES if is_desk => self.copier.room = Some(buffer),
            _ => {}
        }
    }
}

impl Drop for ScanTools {
    fn drop(&mut self) {
        let (Some(desks), Some(mut pair)) = (self.desks.clone(), self.pair.take()) else { return };
        // A query that was given up.
        let mut returned = Vec::new();
        pair.drain_into(&mut returned);
        for returned in returned {
            match returned.lease {
                Lease::Buffers(buffers) => buffers.into_iter().for_each(|buffer| self.put_back(buffer)),
                Lease::Buffer(buffer) => self.put_back(buffer),
                _ => {}
            }
        }
        let is_idle = pair.in_flight() == 0;
        let work = self.work.take().filter(|_| is_idle);
        let copier = std::mem::take(&mut self.copier);
        desks.give(work.map(|work| KeyDesk { pair, work, copier }));
    }
}
