//! A GET beside an install, step by step as `hashed/session/attempt.rs`, `hashed_engine.rs` and `hashed/session/reads.rs` take them, and
//! [`super::apply`] takes them: a key that is always there is always found.

use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// One key, two segments.
struct Store {
    install_sequence: AtomicU64,
    index: AtomicU64,
    segments: [AtomicU64; 2],
    /// Whether the key's record in each segment is valid.
    valid: [AtomicU64; 2],
    /// Whether the key is in a write buffer.
    buffer: Mutex<bool>,
}

impl Store {
    /// The key is in segment 0.
    fn new() -> Arc<Store> {
        Arc::new(Store {
            install_sequence: AtomicU64::new(0),
            index: AtomicU64::new(0),
            segments: [AtomicU64::new(1), AtomicU64::new(0)],
            valid: [AtomicU64::new(1), AtomicU64::new(1)],
            buffer: Mutex::new(false),
        })
    }

    /// Whether a GET finds the key. `hasty`: it believes the first look.
    fn get(&self, hasty: bool) -> bool {
        loop {
            let sequence = self.install_sequence.load(SeqCst);
            if *self.buffer.lock().unwrap() {
                return true;
            }
            let unchanged = || hasty || self.install_sequence.load(SeqCst) == sequence;
            let segment = self.index.load(SeqCst) as usize;
            if self.segments[segment].load(SeqCst) == 1 && unchanged() {
                // The record was read; it is the key's.
                let is_valid = self.valid[segment].load(SeqCst) == 1;
                if is_valid || unchanged() {
                    return is_valid;
                }
            }
            thread::yield_now();
        }
    }

    /// The key is written again, and a flush takes the newer record into segment 1. `early`: the buffer is released before
    /// the install.
    fn overwrite(&self, early: bool) {
        *self.buffer.lock().unwrap() = true;
        if early {
            *self.buffer.lock().unwrap() = false;
        }
        self.install_sequence.fetch_add(1, SeqCst);
        self.valid[0].store(0, SeqCst);
        self.segments[1].store(1, SeqCst);
        self.index.store(1, SeqCst);
        *self.buffer.lock().unwrap() = false;
    }

    /// A collection moves the key's record from segment 0 to segment 1.
    fn collect(&self) {
        self.install_sequence.fetch_add(1, SeqCst);
        self.segments[1].store(1, SeqCst);
        self.index.store(1, SeqCst);
        self.segments[0].store(0, SeqCst);
        self.install_sequence.fetch_add(1, SeqCst);
    }
}

fn beside(hasty: bool, install: impl Fn(&Store) + Copy + Send + Sync + 'static) {
    loom::model(move || {
        let store = Store::new();
        let getter = {
            let store = store.clone();
            thread::spawn(move || assert!(store.get(hasty), "the key is missing"))
        };
        install(&store);
        getter.join().unwrap();
    });
}

#[test]
fn a_get_beside_an_overwrite_finds_the_key() {
    beside(false, |store| store.overwrite(false));
}

#[test]
fn a_get_beside_a_collection_finds_the_key() {
    beside(false, Store::collect);
}

#[test]
#[should_panic]
fn with_a_buffer_that_is_released_early_the_model_fails() {
    beside(false, |store| store.overwrite(true));
}

#[test]
#[should_panic]
fn without_a_second_look_at_the_sequence_the_model_fails() {
    beside(true, |store| store.overwrite(false));
}
