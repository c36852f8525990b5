//! Bugs that tests plant, to show that they would see them. Compiled in only with the feature `planted-bugs`, which nothing but the
//! simulator and tests enable; without it, [`fail_point!`](crate::fail_point) is `false`.

#[cfg(any(test, feature = "planted-bugs"))]
use std::cell::Cell;

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    /// A simulated run is one thread, and several runs may be under way. A thread that another one starts has its bug.
    static PLANTED: Cell<&'static str> = const { Cell::new("") };
}

/// Whether the bug of this name is planted: what is done where it stands is wrong on purpose. The simulator lists the names, and what each
/// bug is.
#[macro_export]
macro_rules! fail_point {
    ($bug:ident) => {
        $crate::planted::has(stringify!($bug))
    };
}

/// Plants a bug in all that `work` does on this thread; none, if its name is empty.
///
/// # Safety
/// `LeaseInFlight` has two hold one buffer: where `work` uses a drive, that has no threads then, and its flash moves bytes only while it is
/// polled.
#[cfg(any(test, feature = "planted-bugs"))]
pub unsafe fn with<T>(bug: &'static str, work: impl FnOnce() -> T) -> T {
    struct Before(&'static str);
    impl Drop for Before {
        fn drop(&mut self) {
            PLANTED.set(self.0);
        }
    }
    let _before = Before(PLANTED.replace(bug));
    work()
}

/// Work for a thread that is about to be started by this one, with the bug that is planted here.
#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let bug = PLANTED.get();
    move || {
        PLANTED.set(bug);
        work()
    }
}

#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn carried<W>(work: W) -> W {
    work
}

#[doc(hidden)]
#[inline]
#[cfg(any(test, feature = "planted-bugs"))]
pub fn has(bug: &str) -> bool {
    PLANTED.get() == bug
}

#[doc(hidden)]
#[inline]
#[cfg(not(any(test, feature = "planted-bugs")))]
pub const fn has(_: &str) -> bool {
    false
}
