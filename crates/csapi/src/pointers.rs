//! Pointers of a C caller. All of this crate's `unsafe` is here.
//!
//! 1. Only C makes values of the pointer types: their fields are private, and safe code has no other way to one. Their promise, which
//!    the header repeats, is C's: each is null, or it points at what the call says, which lives and which nobody else writes during the
//!    call; for what a request keeps, until the request has ended.
//! 2. Bytes are copied, at any alignment; no reference to C's memory is made but for the bytes that a copy moves.
//! 3. Only [`Plain`] types are read: any bytes are a value of them.
//!
//! Threads: a pointer may go to another thread with its request.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, size_of};

/// The longest text that a caller may give, without the zero at its end: the system's longest path.
pub const TEXT_BYTES_MAX: usize = 4095;

/// # Safety
/// Any bytes are a value of the type.
pub unsafe trait Plain: Copy {}

// SAFETY: numbers have no invalid values.
unsafe impl Plain for u8 {}
// SAFETY: as u8.
unsafe impl Plain for u16 {}
// SAFETY: as u8.
unsafe impl Plain for u32 {}
// SAFETY: as u8.
unsafe impl Plain for i32 {}
// SAFETY: as u8.
unsafe impl Plain for u64 {}
// SAFETY: an array of numbers.
unsafe impl<const N: usize> Plain for [u8; N] {}
// SAFETY: a pointer may have any value; it is looked at by C's promise alone.
unsafe impl Plain for HostBytes {}

/// Makes structs of C's plain.
macro_rules! plain {
    ($($name:ty),+) => {$(
        // SAFETY: its fields are plain, and no padding is ever looked at.
        unsafe impl $crate::pointers::Plain for $name {}
    )+};
}
pub(crate) use plain;

/// A pointer that a call reads from.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// The pointer to a field, `offset` bytes behind. Of null, null.
    pub fn field<F>(self, offset: usize) -> In<F> {
        if self.0.is_null() {
            return In(std::ptr::null());
        }
        In(self.0.cast::<u8>().wrapping_add(offset).cast())
    }
}

#[cfg(test)]
impl<T> In<T> {
    /// A pointer to bytes that the test keeps.
    pub fn over(bytes: &[u8]) -> In<T> {
        In(bytes.as_ptr().cast())
    }
}

impl<T: Plain> In<T> {
    /// `None` if it is null.
    pub fn read(self) -> Option<T> {
        // SAFETY: by C's promise it points at a `T`, which is plain.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Reads so many values, one behind the other. `None` if it is null.
    pub fn read_array(self, count: usize) -> Option<Vec<T>> {
        (0..count).map(|place| self.field::<T>(place * size_of::<T>()).read()).collect()
    }
}

/// A text of C's, with a zero at its end.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Its bytes. `None` if it is null, empty, or longer than [`TEXT_BYTES_MAX`].
    pub fn read(self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        if self.0.is_null() {
            return None;
        }
        while bytes.len() <= TEXT_BYTES_MAX {
            // SAFETY: by C's promise a zero ends the text, and none was found before here.
            match unsafe { self.0.cast::<u8>().add(bytes.len()).read() } {
                0 => return (!bytes.is_empty()).then_some(bytes),
                byte => bytes.push(byte),
            }
        }
        None
    }
}

/// A pointer that a call writes to; of a length, reads too.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

// SAFETY: a pointer by itself is only a number, and what it points at is the request's until its end (1).
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T: Plain> Out<T> {
    /// `None` if it is null.
    pub fn read(self) -> Option<T> {
        In(self.0.cast_const()).read()
    }
}

impl<T: Copy> Out<T> {
    /// `None` if it is null: nothing was written.
    pub fn write(self, value: T) -> Option<()> {
        self.write_array(&[value])
    }

    /// As [`Out::write`], one behind the other.
    pub fn write_array(self, values: &[T]) -> Option<()> {
        if self.0.is_null() {
            return None;
        }
        for (place, value) in values.iter().enumerate() {
            // SAFETY: by C's promise there is room for them, at any alignment.
            unsafe { self.0.wrapping_add(place).write_unaligned(*value) };
        }
        Some(())
    }
}

/// Bytes of the caller's own memory, which a copy request moves.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct HostBytes(*mut c_void);

// SAFETY: as `Out`.
unsafe impl Send for HostBytes {}

impl HostBytes {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Copies as many bytes as `into` has.
    pub fn copy_to(self, into: &mut [u8]) {
        // SAFETY: by C's promise as many bytes are there; local memory is never C's, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.0.cast_const().cast(), into.as_mut_ptr(), into.len()) };
    }

    /// Overwrites as many bytes as `from` has.
    pub fn copy_from(self, from: &[u8]) {
        // SAFETY: as `copy_to`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.0.cast(), from.len()) };
    }
}

/// The caller gets this back with the end of its request. The library never looks at it.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Context(*mut c_void);

// SAFETY: it is only handed back.
unsafe impl Send for Context {}
// SAFETY: as `Send`.
unsafe impl Sync for Context {}

impl Context {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A function of C's that hears of the end of a request.
pub type CallbackFunction = unsafe extern "C" fn(Context, u32, u64);

#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Callback(Option<CallbackFunction>);

impl Callback {
    pub fn is_null(self) -> bool {
        self.0.is_none()
    }

    pub fn call(self, context: Context, status: u32, value: u64) {
        if let Some(function) = self.0 {
            // SAFETY: by C's promise it is a function of this type, which may be called on another thread.
            unsafe { function(context, status, value) };
        }
    }
}

/// A union of C's, aligned as its largest member.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Union<const N: usize>([MaybeUninit<u8>; N]);

impl<const N: usize> Union<N> {
    /// It as one of its members.
    pub fn member<T: Plain>(&self) -> T {
        const { assert!(size_of::<T>() <= N) };
        // SAFETY: inside the union, which C has filled, by its promise, and `T` is plain.
        unsafe { self.0.as_ptr().cast::<T>().read_unaligned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Pair {
        first: u32,
        second: u64,
    }
    plain!(Pair);

    #[test]
    fn null_is_read_and_written_as_nothing() {
        assert_eq!(In::<u32>(null()).read(), None);
        assert_eq!(In::<u32>(null()).field::<u64>(8).read(), None);
        assert_eq!(In::<u32>(null()).read_array(2), None);
        assert_eq!(Out::<u64>(null_mut()).write(1), None);
        assert!(Text(null()).read().is_none() && Callback(None).is_null() && Context(null_mut()).is_null());
        Callback(None).call(Context(null_mut()), 0, 0);
    }

    #[test]
    fn fields_and_arrays_lie_where_c_has_them() {
        let pairs = [Pair { first: 1, second: 2 }, Pair { first: 3, second: 4 }];
        let input = In(pairs.as_ptr());
        assert_eq!((input.read(), input.read_array(2)), (Some(pairs[0]), Some(pairs.to_vec())));
        let second = input.field::<u64>(size_of::<Pair>() + std::mem::offset_of!(Pair, second));
        assert_eq!(second.read(), Some(4));
    }

    #[test]
    fn nothing_need_be_aligned() {
        let mut bytes = [0_u8; 17];
        let output = Out(bytes.as_mut_ptr().wrapping_add(1).cast::<u64>());
        output.write_array(&[5, 6]).unwrap();
        assert_eq!((output.read(), In(output.0.cast_const()).read_array(2)), (Some(5), Some(vec![5, 6])));
        assert_eq!((bytes[1], bytes[9]), (5, 6));
    }

    #[test]
    fn a_text_ends_at_its_zero_and_has_a_limit() {
        assert_eq!(Text(c"drive.sock/a".as_ptr()).read().unwrap(), b"drive.sock/a");
        assert_eq!(Text(c"".as_ptr()).read(), None);
        let long = vec![b'x'; TEXT_BYTES_MAX + 1];
        assert_eq!(Text(long.as_ptr().cast()).read(), None, "no zero is looked for behind the limit");
    }

    #[test]
    fn bytes_move_both_ways() {
        let (mut theirs, mut ours) = ([1_u8, 2, 3], [0_u8; 2]);
        let host = HostBytes(theirs.as_mut_ptr().cast());
        host.copy_to(&mut ours);
        assert_eq!(ours, [1, 2]);
        host.copy_from(&[9]);
        assert_eq!(theirs, [9, 2, 3]);
    }

    #[test]
    fn a_member_of_a_union_is_its_first_bytes() {
        let mut bytes = [MaybeUninit::new(0_u8); 16];
        bytes[0] = MaybeUninit::new(7);
        assert_eq!((Union(bytes).member::<u32>(), Union(bytes).member::<u64>()), (7, 7));
    }

    #[test]
    fn a_callback_hears_of_the_end() {
        unsafe extern "C" fn ended(context: Context, status: u32, value: u64) {
            // SAFETY: the test's own.
            unsafe { context.0.cast::<u64>().write(u64::from(status) + value) };
        }
        let mut heard = 0_u64;
        Callback(Some(ended)).call(Context((&raw mut heard).cast()), 3, 4);
        assert_eq!(heard, 7);
    }
}
