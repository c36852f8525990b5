//! The activity of the store, for statistics and for the simulator's count of crashes by phase.

use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    Idle = 0,
    /// Keys are checked and a segment is written.
    Flush = 1,
    /// A manifest frame is being written.
    Install = 2,
    /// The index takes over the installed entries.
    Merge = 3,
    /// Segments are merged into a new one.
    Collect = 4,
    /// A partition of the index is rebuilt.
    Grow = 5,
    /// A segment is dropped to make room.
    Evict = 6,
    /// The store takes more of its drive.
    Resize = 7,
}

const ALL: [Phase; 8] =
    [Phase::Idle, Phase::Flush, Phase::Install, Phase::Merge, Phase::Collect, Phase::Grow, Phase::Evict, Phase::Resize];

#[derive(Default)]
pub struct PhaseCell(AtomicU8);

impl PhaseCell {
    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    pub fn get(&self) -> Phase {
        ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}
