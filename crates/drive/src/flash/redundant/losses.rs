//! Members that a set has lost, and what became of each.
//!
//! A member is lost when a write or a flush fails there. **Its absence is durable on the others before anything is acknowledged that it does not have**:
//! whoever finds it lost waits for that, and until then all others still write to it, and find the same.
//!
//! Threads: any. Who finds a member lost holds the lock while its absence becomes durable.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fail_point;
use crate::locks::whole;

/// Makes it durable on the others that members are absent: those whose bits are set.
pub type RecordAbsence = Box<dyn FnMut(u32) -> io::Result<()> + Send>;

/// What became of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// The path of its file or device.
    pub place: String,
    pub is_lost: bool,
    /// Reads, and writes or flushes, that failed there.
    pub reads_failed: u64,
    pub writes_failed: u64,
    /// Reads that were answered from the others.
    pub rebuilt: u64,
}

#[derive(Default)]
pub struct Counts {
    pub reads_failed: AtomicU64,
    pub writes_failed: AtomicU64,
    pub rebuilt: AtomicU64,
}

/// See the [module](self).
pub struct Losses {
    /// One bit a member.
    lost: AtomicU32,
    declaring: Mutex<RecordAbsence>,
    pub counts: Box<[Counts]>,
}

impl Losses {
    /// `lost`: those that are known to be absent.
    pub fn new(members: usize, lost: u32, record: RecordAbsence) -> Losses {
        let counts = (0..members).map(|_| Counts::default()).collect();
        Losses { lost: AtomicU32::new(lost), declaring: Mutex::new(record), counts }
    }

    pub fn is_lost(&self, member: usize) -> bool {
        self.lost.load(Ordering::Acquire) >> member & 1 == 1
    }

    /// A write or flush failed on this member. Whether the set goes on without it: a second one is not made up for.
    pub fn lose(&self, member: usize) -> bool {
        self.counts[member].writes_failed.fetch_add(1, Ordering::Relaxed);
        let mut record = whole(self.declaring.lock());
        let lost = self.lost.load(Ordering::Acquire);
        if lost != 0 {
            return lost == 1 << member;
        }
        if fail_point!(AbsenceNotDurable) {
            self.lost.store(1 << member, Ordering::Release);
            return true;
        }
        match record(1 << member) {
            Ok(()) => {
                self.lost.store(1 << member, Ordering::Release);
                tracing::error!("member {} is lost; the set goes on without it, and bears no other loss", member + 1);
                true
            }
            Err(error) => {
                tracing::error!("member {} is lost, and the others cannot be told: {error}", member + 1);
                false
            }
        }
    }

    pub fn state(&self, member: usize, place: String) -> MemberState {
        let Counts { reads_failed, writes_failed, rebuilt } = &self.counts[member];
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let is_lost = self.is_lost(member);
        MemberState {
            place,
            is_lost,
            reads_failed: of(reads_failed),
            writes_failed: of(writes_failed),
            rebuilt: of(rebuilt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_member_may_be_lost_once_the_others_know() {
        let known = Arc::new(AtomicU32::new(0));
        let told = known.clone();
        let losses = Losses::new(
            3,
            0,
            Box::new(move |lost| {
                told.store(lost, Ordering::Relaxed);
                Ok(())
            }),
        );
        assert!(losses.lose(1) && losses.is_lost(1) && losses.lose(1));
        assert_eq!(known.load(Ordering::Relaxed), 1 << 1);
        assert!(!losses.lose(2) && !losses.is_lost(2), "a second one is an error of its commands");
        assert_eq!(
            (losses.state(1, String::new()).writes_failed, losses.state(2, String::new()).writes_failed),
            (2, 1)
        );
    }

    #[test]
    fn a_member_of_which_the_others_do_not_know_is_not_gone_without() {
        let losses = Losses::new(2, 0, Box::new(|_| Err(io::Error::other("full"))));
        assert!(!losses.lose(0) && !losses.is_lost(0));
    }
}
