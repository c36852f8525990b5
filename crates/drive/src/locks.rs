//! The one rule for locks whose holder panicked: nobody goes on with what it guarded.
//!
//! A panic may leave that half-changed. Durability needs no clean end, as the design is that of a store that may crash at any moment, so
//! it is enough that nothing more is built on it: the next thread that comes panics as well. The server ends its process at the first
//! panic, before it releases a lock.

use std::sync::LockResult;

/// The guard of a lock whose holders all left it whole; a panic where one did not. While a thread unwinds, its destructors go on.
pub fn whole<G>(locked: LockResult<G>) -> G {
    match locked {
        Ok(guard) => guard,
        Err(poisoned) if std::thread::panicking() => poisoned.into_inner(),
        Err(_) => panic!("another thread panicked while it changed what this one needs: open the store again"),
    }
}
