//! Random requests to a block device, compared with a model of it, like fsx for a file. Many are in flight at once. No two of them touch
//! the same bytes, though often the same block, so each result is known whatever their order.

use std::ops::Range;

use tapetum_kernels::random::SplitMix64;

use super::nbd_client::{BLOCK_STATUS, FLUSH, FUA, NO_HOLE, NbdClient, READ, TRIM, WHOLE, WRITE, WRITE_ZEROES};

const BLOCK: u64 = 4096;
/// Requests choose their offsets in windows of this size, so that they meet.
const WINDOW_BYTES: u64 = 256 << 10;

struct Flying {
    cookie: u64,
    command: u16,
    range: Range<u64>,
}

/// The expected bytes of a device.
pub struct DeviceModel {
    pub bytes: Vec<u8>,
    flying: Vec<Flying>,
}

impl DeviceModel {
    /// The model of an empty device.
    pub fn new(size_bytes: u64) -> DeviceModel {
        DeviceModel { bytes: vec![0; size_bytes as usize], flying: Vec::new() }
    }

    /// Sends so many requests, at most `depth` at once, and checks every reply.
    pub fn exercise(
        &mut self,
        client: &mut NbdClient,
        random: &mut SplitMix64,
        operations: u64,
        depth: usize,
    ) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("the connection failed: {error}");
        for number in 0..operations {
            while self.flying.len() >= depth {
                self.receive(client)?;
            }
            let (command, range) = loop {
                let drawn = self.draw(random, client.structured);
                let meets = |other: &Flying| other.range.start < drawn.1.end && drawn.1.start < other.range.end;
                // Statuses are for whole blocks, and a write in flight to a part of a block may create the block.
                let meets_block = |other: &Flying| {
                    other.range.start / BLOCK <= drawn.1.end / BLOCK && drawn.1.start / BLOCK <= other.range.end / BLOCK
                };
                let waits = match drawn.0 {
                    BLOCK_STATUS => self.flying.iter().any(meets_block),
                    _ => {
                        self.flying.iter().any(meets)
                            || self.flying.iter().any(|other| other.command == BLOCK_STATUS && meets_block(other))
                    }
                };
                if !waits {
                    break drawn;
                }
                self.receive(client)?;
            };
            self.send(client, random, number, command, range).map_err(failed)?;
        }
        while !self.flying.is_empty() {
            self.receive(client)?;
        }
        Ok(())
    }

    fn draw(&self, random: &mut SplitMix64, has_statuses: bool) -> (u16, Range<u64>) {
        let size = self.bytes.len() as u64;
        let command = match random.below(100) {
            0..30 => READ,
            30..75 => WRITE,
            75..83 => WRITE_ZEROES,
            83..89 => TRIM,
            89..95 if has_statuses => BLOCK_STATUS,
            _ => return (FLUSH, 0..0),
        };
        let longest = [700, BLOCK, 4 * BLOCK, 70_000][random.below(4) as usize];
        let window = random.below(size / WINDOW_BYTES).min(random.below(size / WINDOW_BYTES)) * WINDOW_BYTES;
        let mut start = window + random.below(WINDOW_BYTES);
        let mut length = 1 + random.below(longest);
        if random.one_in(2) {
            start -= start % BLOCK;
            length = length.next_multiple_of(BLOCK);
        }
        (command, start..(start + length).min(size))
    }

    fn send(
        &mut self,
        client: &mut NbdClient,
        random: &mut SplitMix64,
        number: u64,
        command: u16,
        range: Range<u64>,
    ) -> std::io::Result<()> {
        let place = range.start as usize..range.end as usize;
        let (length, mut data, mut flags) = ((range.end - range.start) as u32, Vec::new(), 0);
        if matches!(command, WRITE | WRITE_ZEROES | TRIM) && random.one_in(20) {
            flags |= FUA;
        }
        match command {
            READ if random.one_in(3) => flags |= WHOLE,
            WRITE => {
                // A third of the data is incompressible.
                data = vec![number as u8; length as usize];
                random.fill(&mut data[..length as usize / 3]);
                self.bytes[place].copy_from_slice(&data);
            }
            WRITE_ZEROES => {
                flags |= if random.one_in(3) { NO_HOLE } else { 0 };
                self.bytes[place].fill(0);
            }
            TRIM => {
                let whole = range.start.next_multiple_of(BLOCK)..range.end - range.end % BLOCK;
                if whole.start < whole.end {
                    self.bytes[whole.start as usize..whole.end as usize].fill(0);
                }
            }
            _ => {}
        }
        let cookie = client.send(command, flags, range.start, length, &data)?;
        self.flying.push(Flying { cookie, command, range });
        Ok(())
    }

    fn receive(&mut self, client: &mut NbdClient) -> Result<(), String> {
        let (cookie, reply) = client.receive().map_err(|error| format!("the connection failed: {error}"))?;
        let at = self.flying.iter().position(|flying| flying.cookie == cookie).expect("the client knows its cookies");
        let Flying { command, range, .. } = self.flying.swap_remove(at);
        if reply.error != 0 {
            return Err(format!("request {command} of {range:?} came to error {}", reply.error));
        }
        let held = &self.bytes[range.start as usize..range.end as usize];
        if command == READ && reply.bytes != held {
            let at = reply.bytes.iter().zip(held).position(|(one, other)| one != other).unwrap_or(held.len());
            return Err(format!("a read of {range:?} is wrong from byte {} on", range.start + at as u64));
        }
        if command == BLOCK_STATUS {
            let mut at = 0;
            for (bytes, status) in reply.extents {
                let extent = held.get(at..at + bytes as usize).ok_or("a status of more than was asked for")?;
                if status == 3 && extent.iter().any(|byte| *byte != 0) {
                    return Err(format!("what is written in {range:?} is told to be a hole, {at} bytes on"));
                }
                at += bytes as usize;
            }
            if at == 0 {
                return Err(format!("a status of {range:?} says nothing"));
            }
        }
        Ok(())
    }
}
