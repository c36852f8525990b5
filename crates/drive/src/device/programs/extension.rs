//! `extension`: gives the value of an extension of an ordered keyspace, whose slot it is shown from its first byte to the value's last one.
//!
//! The slot may hold another extension meanwhile, or be written while it is read: head and checksums tell, and the answer is [`CORRUPT`](super::CORRUPT) then.
//! Damage behind the head is found at the value's end, when most of it has been given out: a pipeline in which this program fails has no result.

use super::transforms::{pass, run_stream};
use crate::device::program::{Context, Program, ProgramDescriptor, ProgramResult};
use crate::protocol::{PARAMETERS_MAX, Status};
use std::io;
use tapetum_kernels::mib_sums::MibCheck;
use tapetum_kernels::ordered::extension::{ExtensionHead, ExtensionReference, front_bytes};
use tapetum_kernels::record::Codec;
use tapetum_kernels::zstd_stream::StreamStep;

/// Its name and version.
pub const EXTENSION: (&str, u16) = ("extension", 1);

/// The extension that is to be in the slot. The program takes only values that are stored raw.
#[derive(Clone, Copy, Debug)]
pub struct ExtensionRequest {
    /// The slot's crc of no bytes ([`tapetum_kernels::ordered::extension::crc_of_none`]).
    pub crc_of_none: u32,
    pub stamp: u64,
    pub stored_bytes: u32,
    pub key_bytes: u16,
}

const ENCODED_BYTES: usize = 4 + 8 + 4 + 2;
const _: () = assert!(ENCODED_BYTES <= PARAMETERS_MAX);

impl ExtensionRequest {
    /// `None` if the reference is to a value that is not stored raw, or no key is as long.
    pub fn new(reference: &ExtensionReference, crc_of_none: u32, key_bytes: usize) -> Option<ExtensionRequest> {
        let ExtensionReference { stamp, codec, stored_bytes, .. } = *reference;
        let key_bytes = u16::try_from(key_bytes).ok().filter(|_| codec == Codec::Raw)?;
        Some(ExtensionRequest { crc_of_none, stamp, stored_bytes, key_bytes })
    }

    /// Bytes of the slot that the program has to see.
    pub fn slot_bytes(&self) -> u64 {
        (self.front_bytes() + self.stored_bytes as usize) as u64
    }

    /// The program's parameters.
    pub fn encode(&self) -> Vec<u8> {
        let ExtensionRequest { crc_of_none, stamp, stored_bytes, key_bytes } = self;
        let words = [crc_of_none.to_le_bytes(), stored_bytes.to_le_bytes()].concat();
        [&words[..], &stamp.to_le_bytes(), &key_bytes.to_le_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<ExtensionRequest> {
        let bytes: &[u8; ENCODED_BYTES] = bytes.try_into().ok()?;
        let (words, rest) = bytes.split_first_chunk::<8>()?;
        let (stamp, key_bytes) = rest.split_first_chunk::<8>()?;
        let word = u64::from_le_bytes(*words);
        Some(ExtensionRequest {
            crc_of_none: word as u32,
            stored_bytes: (word >> 32) as u32,
            stamp: u64::from_le_bytes(*stamp),
            key_bytes: u16::from_le_bytes(key_bytes.try_into().ok()?),
        })
    }

    fn front_bytes(&self) -> usize {
        front_bytes(self.key_bytes.into(), self.stored_bytes as usize)
    }

    fn names(&self, head: &ExtensionHead, key: &[u8]) -> bool {
        let named = (self.stamp, Codec::Raw, self.stored_bytes, self.stored_bytes);
        named == (head.stamp, head.codec, head.stored_bytes, head.raw_bytes) && key.len() == self.key_bytes.into()
    }
}

pub struct ExtensionProgram;

/// The value so far.
struct ExtensionState {
    request: ExtensionRequest,
    /// The bytes in front of the value.
    front: Vec<u8>,
    /// The head, when all bytes in front of the value were seen.
    head: Option<ExtensionHead>,
    check: MibCheck,
    given: u64,
}

impl Program for ExtensionProgram {
    fn descriptor(&self) -> ProgramDescriptor {
        ProgramDescriptor { name: EXTENSION.0, version: EXTENSION.1, is_stream: true }
    }

    fn run(&self, context: Context<'_>) -> ProgramResult {
        let Some(request) = ExtensionRequest::decode(context.parameters) else { return (Status::InvalidField, [0; 2]) };
        run_stream(context, || Some(ExtensionState::new(request)), ExtensionState::step)
    }
}

impl ExtensionState {
    fn new(request: ExtensionRequest) -> ExtensionState {
        let check = MibCheck::new(request.crc_of_none);
        ExtensionState { request, front: Vec::new(), head: None, check, given: 0 }
    }

    fn step(&mut self, from: &[u8], into: &mut [u8], is_last: bool) -> io::Result<StreamStep> {
        let Some(head) = &self.head else { return self.take_front(from, is_last) };
        let step = pass(from, into);
        self.check.take(&head.sums, &from[..step.consumed]);
        self.given += step.filled as u64;
        let is_whole = self.given == u64::from(head.stored_bytes) && self.check.damaged(&head.sums).is_none();
        if is_last && !step.has_more && !is_whole { Err(corrupt()) } else { Ok(step) }
    }

    fn take_front(&mut self, from: &[u8], is_last: bool) -> io::Result<StreamStep> {
        let lacks = self.request.front_bytes() - self.front.len();
        let taken = lacks.min(from.len());
        self.front.extend_from_slice(&from[..taken]);
        if taken == lacks {
            let parsed = ExtensionHead::parse_continued(&self.front, self.request.crc_of_none);
            let head = parsed.ok().filter(|(head, key)| self.request.names(head, key)).map(|(head, _)| head);
            self.head = Some(head.ok_or_else(corrupt)?);
        }
        // No extension is without a value.
        if is_last && taken == from.len() {
            return Err(corrupt());
        }
        Ok(StreamStep { consumed: taken, filled: 0, has_more: false })
    }
}

fn corrupt() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::super::CORRUPT;
    use super::*;
    use crate::device::program::TaskState;
    use tapetum_kernels::mib_sums::{MIB, MibSums};
    use tapetum_kernels::ordered::extension::crc_of_none;
    use tapetum_kernels::ordered::{SlotAddress, SlotSalt};
    use tapetum_kernels::random::SplitMix64;

    /// The output of the program for a slot that comes in parts of so many bytes, with as little room for it.
    fn run(request: &ExtensionRequest, slot: &[u8], part_bytes: usize) -> Result<Vec<u8>, Status> {
        let (mut task, mut output, mut value) = (TaskState::default(), vec![0; part_bytes], Vec::new());
        let mut parts = slot.chunks(part_bytes).peekable();
        while let Some(part) = parts.next() {
            task.more_input = parts.peek().is_some();
            loop {
                let parameters = request.encode();
                let context =
                    Context { parameters: &parameters, inputs: &[part], output: &mut output, task: &mut task };
                let (status, [filled, _]) = ExtensionProgram.run(context);
                value.extend_from_slice(&output[..filled as usize]);
                match status {
                    Status::More => {}
                    Status::Success => break,
                    status => return Err(status),
                }
            }
        }
        Ok(value)
    }

    #[test]
    fn a_value_is_given_and_no_other() {
        let slot_address = SlotAddress::from_word(7).unwrap();
        let salt = SlotSalt { store: 1, slot: slot_address, version: 2 };
        let crc_of_none = crc_of_none(salt);
        for (stored_bytes, part_bytes) in [(1, 1), (5000, 7), (5000, 4096), (3 * MIB + 77, 256 << 10)] {
            let value = SplitMix64::new(1).bytes(stored_bytes);
            let sums = MibSums::of(crc_of_none, &value);
            let (stamp, codec, stored) = (9, Codec::Raw, stored_bytes as u32);
            let head = ExtensionHead { keyspace: 3, stamp, codec, raw_bytes: stored, stored_bytes: stored, sums };
            let mut slot = vec![0; front_bytes(3, stored_bytes)];
            head.encode(b"key", salt, &mut slot);
            slot.extend_from_slice(&value);
            let reference = ExtensionReference { stamp, slot: slot_address, codec, stored_bytes: stored };
            let request = ExtensionRequest::new(&reference, crc_of_none, 3).unwrap();
            assert_eq!(request.slot_bytes(), slot.len() as u64);
            assert!(run(&request, &slot, part_bytes).is_ok_and(|given| given == value), "{stored_bytes}");
            for other in [
                ExtensionRequest { stamp: 8, ..request },
                ExtensionRequest { crc_of_none: !crc_of_none, ..request },
                ExtensionRequest { stored_bytes: stored + 1, ..request },
                ExtensionRequest { key_bytes: 4, ..request },
            ] {
                assert_eq!(run(&other, &slot, part_bytes), Err(CORRUPT), "{other:?}");
            }
            for at in [0, slot.len() / 2, slot.len() - 1] {
                let mut damaged = slot.clone();
                damaged[at] ^= 1;
                assert_eq!(run(&request, &damaged, part_bytes), Err(CORRUPT), "byte {at}");
            }
            assert_eq!(run(&request, &slot[..slot.len() - 1], part_bytes), Err(CORRUPT));
        }
        let zstd = ExtensionReference { stamp: 1, slot: slot_address, codec: Codec::Zstd, stored_bytes: 9 };
        assert!(ExtensionRequest::new(&zstd, crc_of_none, 3).is_none());
    }
}
