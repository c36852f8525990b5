//! The gate of those who change nodes: a freeze closes it, and then no page changes until it is opened.
//!
//! Each session has a pass, and works on its operations only within it. What a session does while the gate is closed changes no page: gets go on that no
//! change stands before, and changes wait for the next poll.
//!
//! 1. A session looks at the gate while it has its pass. So whoever closes the gate and then waits for each pass once knows that all changes that
//!    were begun have ended, and that none is begun.
//! 2. A session gives its pages back before it gives its pass back. So all pages are in the cache then, or with the write-back.
//!
//! Threads: any. A session has its own pass and takes other locks within it, or has taken them before, for a batch: nobody else waits for a pass but
//! whoever closes the gate, and that holds no lock then but the gate's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tapetum_base::media::io::lock;

#[derive(Default)]
pub struct WriterGate {
    is_closed: AtomicBool,
    passes: Mutex<Vec<Weak<Mutex<()>>>>,
    /// Held by the freeze that has closed the gate.
    freezing: Mutex<()>,
}

/// A session's pass.
pub struct GatePass {
    gate: Arc<WriterGate>,
    pass: Arc<Mutex<()>>,
}

/// A session works on its operations.
pub struct Passing<'a> {
    _pass: MutexGuard<'a, ()>,
    /// The session may change pages.
    pub may_change: bool,
}

/// The gate is closed until this is dropped.
pub struct ClosedGate<'a> {
    gate: &'a WriterGate,
    _freezing: MutexGuard<'a, ()>,
}

impl WriterGate {
    pub fn pass(self: &Arc<Self>) -> GatePass {
        let pass = Arc::new(Mutex::new(()));
        let mut passes = lock(&self.passes);
        passes.retain(|pass| pass.strong_count() > 0);
        passes.push(Arc::downgrade(&pass));
        drop(passes);
        GatePass { gate: self.clone(), pass }
    }

    /// Closes the gate, and waits until no page is being changed: for the polls of sessions that are under way.
    pub fn close(&self) -> ClosedGate<'_> {
        let freezing = lock(&self.freezing);
        self.is_closed.store(true, Ordering::SeqCst);
        let passes: Vec<_> = lock(&self.passes).iter().filter_map(Weak::upgrade).collect();
        passes.iter().for_each(|pass| drop(lock(pass)));
        ClosedGate { gate: self, _freezing: freezing }
    }
}

impl GatePass {
    pub fn pass(&self) -> Passing<'_> {
        let pass = lock(&self.pass);
        Passing { _pass: pass, may_change: !self.gate.is_closed.load(Ordering::SeqCst) }
    }
}

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        self.gate.is_closed.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the point is real threads")]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nothing_changes_while_the_gate_is_closed() {
        let (gate, changes, ended) = (Arc::<WriterGate>::default(), AtomicU64::new(0), AtomicBool::new(false));
        let seen = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let pass = gate.pass();
                    while !ended.load(Ordering::Relaxed) {
                        if pass.pass().may_change {
                            let passing = pass.pass();
                            if passing.may_change {
                                changes.fetch_add(1, Ordering::Relaxed);
                                changes.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
            let look = |_| {
                let _closed = gate.close();
                let before = changes.load(Ordering::Relaxed);
                std::thread::yield_now();
                (before, changes.load(Ordering::Relaxed))
            };
            let seen: Vec<_> = (0..2000).map(look).collect();
            // On a busy machine the writers may have had no turn yet.
            let is_open = (0..60_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                changes.load(Ordering::Relaxed) > seen[0].0
            });
            ended.store(true, Ordering::Relaxed);
            assert!(is_open, "it opens again");
            seen
        });
        assert!(
            seen.iter().all(|(before, after)| before == after && before % 2 == 0),
            "half a change, or one meanwhile"
        );
    }
}
