//! Unsent output of a connection: a queue of buffers, and the pool of small buffers that a worker's connections share.
//! Owned by one worker.
//!
//! A client that reads slowly holds at most twice its unsent bytes, and [`IDLE_BYTES_MAX`]: when its socket is full, a buffer that is
//! mostly sent or empty is exchanged for one of the right size. At least as many bytes were sent as are copied then, so on average a byte
//! is copied at most once.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use crate::os;

/// A buffer with so many bytes gets no more replies.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of a buffer that may be idle (sent or never written), however few are unsent.
const IDLE_BYTES_MAX: usize = 4 << 10;
/// The most pieces of one write.
const PIECES_MAX: usize = 64;

/// Buffers that are not in use.
#[derive(Default)]
pub struct Pool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    large_bytes: usize,
}

impl Pool {
    const SMALL_MAX: usize = 64;
    const SMALL_BYTES_MAX: usize = 2 * CHUNK_BYTES;
    /// The most bytes of all large buffers: a client's limit in flight. Without them, each of its long reads would map memory again.
    const LARGE_BYTES_MAX: usize = 2 << 20;

    pub fn take(&mut self) -> Vec<u8> {
        self.small.pop().unwrap_or_default()
    }

    pub fn take_zeroed(&mut self, bytes: usize) -> Vec<u8> {
        let fits = |buffer: &Vec<u8>| (bytes..=2 * bytes).contains(&buffer.capacity());
        let Some(at) = self.large.iter().position(fits) else { return vec![0; bytes] };
        let mut buffer = self.large.swap_remove(at);
        self.large_bytes -= buffer.capacity();
        buffer.resize(bytes, 0);
        buffer
    }

    /// Keeps `buffer` for later, unless there are enough.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        buffer.clear();
        if bytes <= Pool::SMALL_BYTES_MAX {
            if self.small.len() < Pool::SMALL_MAX {
                self.small.push(buffer);
            }
        } else if self.large_bytes + bytes <= Pool::LARGE_BYTES_MAX {
            self.large_bytes += bytes;
            self.large.push(buffer);
        }
    }
}

#[derive(Default)]
pub struct OutQueue {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that are sent.
    sent_bytes: usize,
    unsent_bytes: usize,
}

impl OutQueue {
    pub fn is_empty(&self) -> bool {
        self.unsent_bytes == 0
    }

    pub fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Bytes in the buffers: unsent ones, and sent ones of the first buffer.
    pub fn held_bytes(&self) -> usize {
        self.unsent_bytes + self.sent_bytes
    }

    /// The unsent bytes, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().enumerate().map(|(at, chunk)| if at == 0 { &chunk[self.sent_bytes..] } else { chunk })
    }

    /// Lets `write` append to the end of the queue.
    pub fn append<R>(&mut self, pool: &mut Pool, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if self.chunks.back().is_none_or(|chunk| chunk.len() >= CHUNK_BYTES) {
            self.chunks.push_back(pool.take());
        }
        let last = self.chunks.len() - 1;
        let before = self.chunks[last].len();
        let result = write(&mut self.chunks[last]);
        self.unsent_bytes += self.chunks[last].len() - before;
        if self.chunks[last].is_empty() {
            pool.give(self.chunks.pop_back().unwrap_or_default());
        }
        result
    }

    /// Appends a whole buffer: a large one as it is, a small one by copy.
    pub fn append_buffer(&mut self, pool: &mut Pool, buffer: Vec<u8>) {
        if buffer.len() >= CHUNK_BYTES {
            self.unsent_bytes += buffer.len();
            self.chunks.push_back(buffer);
        } else {
            self.append(pool, |out| out.extend_from_slice(&buffer));
            pool.give(buffer);
        }
    }

    /// Sends as much as `socket` takes. Returns how many bytes.
    pub fn send(&mut self, socket: impl AsFd, pool: &mut Pool) -> io::Result<usize> {
        let mut total = 0;
        while self.unsent_bytes > 0 {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            for (piece, chunk) in pieces.iter_mut().zip(&self.chunks) {
                let from = if count == 0 { self.sent_bytes } else { 0 };
                *piece = IoSlice::new(&chunk[from..]);
                count += 1;
            }
            match os::send(&socket, &pieces[..count]) {
                Ok(written) => {
                    total += written;
                    self.advance(written, pool);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.trim(pool);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.is_empty() {
            self.clear(pool);
        }
        Ok(total)
    }

    /// Exchanges the first and the last buffer for smaller ones if they are mostly idle. The buffers between are full and unsent.
    fn trim(&mut self, pool: &mut Pool) {
        for at in [0, self.chunks.len().saturating_sub(1)] {
            let Some(chunk) = self.chunks.get_mut(at) else { return };
            let rest = &chunk[if at == 0 { self.sent_bytes } else { 0 }..];
            if chunk.capacity() - rest.len() <= rest.len().max(IDLE_BYTES_MAX) {
                continue;
            }
            let rest = rest.to_vec();
            pool.give(std::mem::replace(chunk, rest));
            if at == 0 {
                self.sent_bytes = 0;
            }
        }
    }

    /// Takes so many unsent bytes away: they were sent, or are somebody else's.
    pub fn advance(&mut self, mut written: usize, pool: &mut Pool) {
        self.unsent_bytes -= written;
        while let Some(first) = self.chunks.front() {
            let rest = first.len() - self.sent_bytes;
            if written < rest {
                self.sent_bytes += written;
                return;
            }
            written -= rest;
            self.sent_bytes = 0;
            pool.give(self.chunks.pop_front().unwrap_or_default());
        }
    }

    #[cfg(test)]
    pub fn take_first(&mut self) -> Vec<u8> {
        let chunk = self.chunks.pop_front().unwrap_or_default();
        self.unsent_bytes -= chunk.len();
        chunk
    }

    /// Drops unsent bytes. An idle connection then holds no buffer.
    pub fn clear(&mut self, pool: &mut Pool) {
        (self.sent_bytes, self.unsent_bytes) = (0, 0);
        for chunk in std::mem::take(&mut self.chunks) {
            pool.give(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn sends_everything_in_order_through_a_narrow_pipe() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (mut queue, mut pool) = (OutQueue::default(), Pool::default());
        let mut expected = Vec::new();
        for index in 0..2000usize {
            let piece = vec![index as u8; index % 700];
            queue.append(&mut pool, |out| out.extend_from_slice(&piece));
            expected.extend_from_slice(&piece);
        }
        queue.append_buffer(&mut pool, vec![1; CHUNK_BYTES + 1]);
        expected.resize(expected.len() + CHUNK_BYTES + 1, 1);
        queue.append_buffer(&mut pool, vec![2; 10]);
        expected.resize(expected.len() + 10, 2);
        assert_eq!(queue.unsent_bytes(), expected.len());
        let mut received = Vec::new();
        let mut buffer = [0; 8192];
        while received.len() < expected.len() {
            queue.send(&ours, &mut pool).unwrap();
            let count = theirs.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        assert!(received == expected && queue.is_empty());
        assert_eq!(queue.chunks.capacity(), 0);
    }

    #[test]
    fn a_slow_client_keeps_little_more_than_what_it_has_yet_to_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (mut queue, mut pool) = (OutQueue::default(), Pool::default());
        let value: Vec<u8> = (0..8 << 20).map(|at: usize| (at / 1000) as u8).collect();
        queue.append(&mut pool, |out| out.extend_from_slice(&value));
        // A few bytes use a buffer that has room for many replies.
        pool.give(Vec::with_capacity(Pool::SMALL_BYTES_MAX));
        queue.append(&mut pool, |out| out.push(7));
        let (mut received, mut buffer) = (Vec::new(), vec![0; 50_000]);
        while received.len() <= value.len() {
            queue.send(&ours, &mut pool).unwrap();
            let held: usize = queue.chunks.iter().map(Vec::capacity).sum();
            assert!(held <= 2 * queue.unsent_bytes() + 2 * IDLE_BYTES_MAX, "{held} for {}", queue.unsent_bytes());
            assert!(queue.held_bytes() <= held);
            let count = theirs.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        assert!(received[..value.len()] == value && received[value.len()] == 7 && queue.is_empty());
        assert_eq!(queue.held_bytes(), 0);
    }

    #[test]
    fn a_large_buffer_is_used_again_as_zeros_and_no_more_are_kept_than_may_be() {
        let mut pool = Pool::default();
        let large = Pool::LARGE_BYTES_MAX / 4;
        for _ in 0..6 {
            pool.give(vec![7; large]);
        }
        assert_eq!((pool.large.len(), pool.large_bytes), (4, Pool::LARGE_BYTES_MAX));
        let buffer = pool.take_zeroed(large - 10);
        assert!(buffer.len() == large - 10 && buffer.iter().all(|byte| *byte == 0));
        assert_eq!(pool.large.len(), 3);
        assert_eq!(pool.take_zeroed(large + 1), vec![0; large + 1]);
        assert_eq!((pool.large.len(), pool.take_zeroed(10).len()), (3, 10), "a small one takes no large one's place");
    }

    #[test]
    fn a_peer_that_left_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let (mut queue, mut pool) = (OutQueue::default(), Pool::default());
        queue.append(&mut pool, |out| out.push(1));
        assert!(queue.send(&ours, &mut pool).is_err());
    }
}
