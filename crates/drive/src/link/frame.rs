//! Requests of a host and answers of a drive, over a socket that keeps messages apart: one message each, with descriptors.
//!
//! ```text
//!  0         8                         64        72
//!  +---------+-------------------------+---------+--------------------+
//!  | kind    | 7 numbers u64           | bytes   | text, or an        |
//!  | u64     | (their meaning: `kind`) | of text | encoded identity   |
//!  +---------+-------------------------+---------+--------------------+
//! ```

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub const NUMBERS: usize = 7;
pub const TEXT_BYTES_MAX: usize = 16 << 10;
const HEAD_BYTES: usize = 72;
/// Descriptors of one message.
pub const FILES_MAX: usize = 3;

/// Questions and answers, by number: `numbers`, `text` and files of the request, then of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// version, flags ([`TAKE_OVER`], [`CREATE`], [`AGAIN`]), bytes of a new partition, the number that the host gave itself; the partition's
    /// name.
    /// Answer: its bytes, sector, atomic write, epoch, whether it was made whole; the flash's description.
    Attach = 1,
    /// bytes of local memory; the window.
    /// Answer: its number, bytes of it in all; the encoded identity; local memory.
    Memory = 2,
    /// number of the memory, depth, part bytes (0: as the drive likes), whether they are needed at once, bytes of the host's region (0: none);
    /// the pair's memory, and the region. Answer: number of the pair (0: there is no room for the parts); the drive's event and the host's.
    Pair = 3,
    /// number. The answer comes when nothing of it is on its way.
    Unpair = 4,
    /// bytes. Answer: the bytes that there are.
    Grow = 5,
    /// The store is whole.
    Made = 6,
    /// number of the memory. Answer: processor time and resident memory of the drive's process; the counters of its queue pairs, encoded.
    Counters = 7,
    /// number of a memory that has no queue pairs any more.
    Forget = 8,
    /// An answer that says why not: a [`Refusal`], a number that goes with it; the reason.
    Refused = 100,
    /// Any other answer.
    Done = 101,
}

pub const TAKE_OVER: u64 = 1;
pub const CREATE: u64 = 2;
/// The host had the partition: no other may have had it since.
pub const AGAIN: u64 = 4;

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Attach,
        Kind::Memory,
        Kind::Pair,
        Kind::Unpair,
        Kind::Grow,
        Kind::Made,
        Kind::Counters,
        Kind::Forget,
        Kind::Refused,
        Kind::Done,
    ];

    fn of_number(number: u64) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u64 == number)
    }
}

/// Why a drive refuses, as far as the host acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// As the text says.
    Other = 1,
    /// There is no such partition.
    NotFound = 2,
    /// Another host has it.
    InUse = 3,
    /// No room in flash; how much was asked for.
    NoSpace = 4,
    /// Another version; which one.
    Version = 5,
}

impl Refusal {
    pub fn of_number(number: u64) -> Refusal {
        let all = [Refusal::NotFound, Refusal::InUse, Refusal::NoSpace, Refusal::Version];
        all.into_iter().find(|refusal| *refusal as u64 == number).unwrap_or(Refusal::Other)
    }
}

#[derive(Debug)]
pub struct Frame {
    pub kind: Kind,
    pub numbers: [u64; NUMBERS],
    pub text: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

impl Frame {
    pub fn new<const N: usize>(kind: Kind, numbers: [u64; N]) -> Frame {
        const { assert!(N <= NUMBERS) }
        let mut all = [0; NUMBERS];
        all[..N].copy_from_slice(&numbers);
        Frame { kind, numbers: all, text: Vec::new(), files: Vec::new() }
    }

    #[must_use]
    pub fn with_text(self, text: impl Into<Vec<u8>>) -> Frame {
        let mut text = text.into();
        text.truncate(TEXT_BYTES_MAX);
        Frame { text, ..self }
    }

    pub fn refused(refusal: Refusal, number: u64, why: impl Into<Vec<u8>>) -> Frame {
        Frame::new(Kind::Refused, [refusal as u64, number]).with_text(why)
    }

    pub fn shown_text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    /// Sends it, with `files` in place of its own. It blocks if the other side does not read.
    ///
    /// # Errors
    /// The operating system's.
    pub fn send(&self, socket: impl AsFd, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut head = [0; HEAD_BYTES];
        let words = [self.kind as u64].into_iter().chain(self.numbers).chain([self.text.len() as u64]);
        for (place, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::other(format!("{} descriptors in one message", files.len())));
        }
        let parts = [IoSlice::new(&head), IoSlice::new(&self.text)];
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &parts, &mut ancillary, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for one. `None`: the other side has ended.
    ///
    /// # Errors
    /// The operating system's, and if it is no frame.
    pub fn receive(socket: impl AsFd) -> io::Result<Option<Frame>> {
        let mut bytes = vec![0; HEAD_BYTES + TEXT_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Ok(received) if received.bytes > 0 => received,
            Ok(_) | Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                files.extend(sent);
            }
        }
        let bytes = &bytes[..received.bytes];
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(malformed("too long"));
        }
        Frame::decode(bytes, files).map(Some)
    }

    fn decode(bytes: &[u8], files: Vec<OwnedFd>) -> io::Result<Frame> {
        let (head, text) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(|| malformed("too short"))?;
        let words = head.as_chunks::<8>().0;
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let kind = Kind::of_number(word(0)).ok_or_else(|| malformed("of an unknown kind"))?;
        if word(NUMBERS + 1) != text.len() as u64 {
            return Err(malformed("not as long as it says"));
        }
        Ok(Frame { kind, numbers: std::array::from_fn(|at| word(at + 1)), text: text.to_vec(), files })
    }
}

fn malformed(how: &str) -> io::Error {
    io::Error::other(format!("a message between host and drive is {how}: run the same version on both"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_frame_comes_with_its_numbers_text_and_files() {
        let (ours, theirs) = pair();
        let frame = Frame::new(Kind::Pair, [1, 2, 3]).with_text("text");
        frame.send(&ours, &[ours.as_fd(), theirs.as_fd()]).unwrap();
        let came = Frame::receive(&theirs).unwrap().unwrap();
        assert_eq!((came.kind, came.numbers, &came.text[..]), (Kind::Pair, [1, 2, 3, 0, 0, 0, 0], &b"text"[..]));
        assert_eq!(came.files.len(), 2);
        drop((came, ours));
        assert!(Frame::receive(&theirs).unwrap().is_none());
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let (ours, theirs) = pair();
        let mut whole = [0; HEAD_BYTES + 4];
        whole[0] = 1;
        for (at, value, length) in [(0, 1, 10), (0, 50, HEAD_BYTES), (64, 3, HEAD_BYTES + 4)] {
            let mut bytes = whole;
            bytes[at] = value;
            rustix::net::send(&ours, &bytes[..length], SendFlags::empty()).unwrap();
            assert!(Frame::receive(&theirs).is_err(), "{at} {value} {length}");
        }
    }
}
