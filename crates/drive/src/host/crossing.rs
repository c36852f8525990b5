//! Bytes that cross between the host and local memory: each step of the host's, counted by its purpose.

use super::QueuePair;
use crate::memory::LocalBuffer;
use crate::protocol::Purpose;
use std::ops::Range;

impl QueuePair {
    /// Appends bytes of a buffer: the explicit step by which a result leaves the drive.
    pub fn copy_to_host(&self, purpose: Purpose, buffer: &LocalBuffer, bytes: Range<usize>, into: &mut Vec<u8>) {
        self.counters.moved_local_to_host(purpose, bytes.len() as u64);
        buffer.copy_to(bytes, into);
    }

    /// [`QueuePair::copy_to_host`] of a few bytes whose number is known.
    pub fn copy_array_to_host<const N: usize>(&self, purpose: Purpose, buffer: &LocalBuffer, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.look(purpose, buffer, at..at + N));
        bytes
    }

    /// Bytes of a buffer in place.
    ///
    /// # Panics
    /// If the drive is another process, and some of them, not all, are what the host has written and no command has had.
    pub fn look<'a>(&self, purpose: Purpose, buffer: &'a LocalBuffer, bytes: Range<usize>) -> &'a [u8] {
        self.counters.moved_local_to_host(purpose, bytes.len() as u64);
        buffer.looked_at(bytes)
    }

    /// Bytes of a buffer, for the host to write all of them.
    pub fn fill<'a>(&self, purpose: Purpose, buffer: &'a mut LocalBuffer, bytes: Range<usize>) -> &'a mut [u8] {
        self.counters.moved_host_to_local(purpose, bytes.len() as u64);
        buffer.bytes_to_write(bytes)
    }

    /// As [`QueuePair::look`], for whoever looks at the same bytes again and again: they cross once.
    pub fn view(&self, purpose: Purpose, buffer: LocalBuffer, bytes: Range<usize>) -> HostView {
        self.counters.moved_local_to_host(purpose, bytes.len() as u64);
        let copied = self.drive().is_elsewhere().then(|| {
            let mut copy = Vec::with_capacity(bytes.len());
            buffer.copy_to(bytes.clone(), &mut copy);
            copy
        });
        HostView { buffer, bytes, copied }
    }

    /// Puts bytes that the host has in front of those of a view, which must not begin nearer to the buffer's start.
    pub fn prepend(&self, purpose: Purpose, view: &mut HostView, bytes: &[u8]) {
        if let Some(copied) = &mut view.copied {
            copied.splice(0..0, bytes.iter().copied());
            return;
        }
        let from = view.bytes.start - bytes.len();
        self.fill(purpose, &mut view.buffer, from..view.bytes.start).copy_from_slice(bytes);
        view.bytes.start = from;
    }
}

/// Bytes of a buffer that the host has looked at.
#[derive(Debug)]
pub struct HostView {
    buffer: LocalBuffer,
    bytes: Range<usize>,
    /// The bytes, if the drive is another process: its memory is only read, and bytes are put in front here.
    copied: Option<Vec<u8>>,
}

impl HostView {
    pub fn bytes(&self) -> &[u8] {
        match &self.copied {
            Some(copied) => copied,
            None => &self.buffer.bytes()[self.bytes.clone()],
        }
    }

    /// Takes the buffer, to be read into again; no bytes are left.
    pub fn take(&mut self) -> LocalBuffer {
        (self.bytes, self.copied) = (0..0, None);
        self.buffer.take()
    }
}
