//! Which process something belongs to.
//!
//! A forked child has the memory of its parent, but none of its threads. A lock that one of them held stays held, and rings and locks on
//! files are the parent's. So the child may neither use nor drop what the parent had open: it would wait for a thread that is not there,
//! or change what is the parent's.
//!
//! A count that the child's side of each fork raises tells them apart: looking at it costs one load.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that made the first mark and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Runs in a child before its `fork` returns, while it has one thread: a plain add, as a signal handler may do.
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

fn count_forks() {
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        // SAFETY: the handler touches an atomic and nothing else, and is there for as long as this code is.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        if refused != 0 {
            let error = io::Error::from_raw_os_error(refused);
            tracing::warn!("forks of this process are not noticed ({error}): use no store in a forked child");
        }
    });
}

/// A process that made something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessMark(u32);

impl ProcessMark {
    /// The mark of this process.
    pub fn now() -> ProcessMark {
        count_forks();
        ProcessMark(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process made it, rather than one that it was forked from.
    pub fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// A value that is dropped only in the process that made it; a forked child leaks its copy. Clones belong to that process too.
#[derive(Debug)]
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    made: ProcessMark,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess { value: ManuallyDrop::new(value), made: ProcessMark::now() }
    }

    /// Whether this process made it. If not, use nothing of it that has locks, threads or descriptors.
    pub fn is_here(&self) -> bool {
        self.made.is_here()
    }
}

impl<T: Clone> Clone for OfProcess<T> {
    fn clone(&self) -> OfProcess<T> {
        OfProcess { value: self.value.clone(), made: self.made }
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Whether the work came to true in a forked child.
    fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child touches what it was handed, and ends without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(!work());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child, and writes to `status` alone.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn a_forked_child_knows_what_is_its_parents_and_does_not_drop_it() {
        let shared = Arc::new(());
        let held = OfProcess::new(shared.clone());
        assert!(held.is_here());
        assert!(in_child(|| {
            let is_noticed = !held.is_here() && !held.clone().is_here();
            drop((held.clone(), OfProcess::new(())));
            is_noticed && OfProcess::new(()).is_here() && Arc::strong_count(&shared) == 4
        }));
        assert!(held.is_here(), "the parent's own are what they were");
        drop(held);
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
