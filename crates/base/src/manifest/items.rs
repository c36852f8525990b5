//! Items: what a frame says, each for one client.
//!
//! ```text
//!  payload of a frame: items, one behind the other, up to its end
//!  item:   0            4            8
//!          +------------+------------+-----------------------+
//!          | client u32 | length u32 | bytes of that client  |
//!          +------------+------------+-----------------------+
//! ```
//! One frame may have items of several clients, and several of one: the frame's checksum makes them count together or not at all.

use crate::media::wire::{Reader, Short, Writer};

/// Says whose an item is. A number is never given to another kind of client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClientId(pub u32);

impl ClientId {
    /// Marks that are the base's own.
    pub const MARKS: ClientId = ClientId(1);
    /// The catalogue of keyspaces.
    pub const KEYSPACES: ClientId = ClientId(2);
    /// The hashed engine.
    pub const HASHED: ClientId = ClientId(3);
    /// Groups of slots, of the ordered engine.
    pub const ORDERED: ClientId = ClientId(4);
    /// Roots of engines that are no clients of their own.
    pub const ROOTS: ClientId = ClientId(5);
}

#[repr(C)]
struct FrameItemHead {
    client: u32,
    length: u32,
}

pub const ITEM_HEAD_BYTES: usize = 8;
const _: () = assert!(size_of::<FrameItemHead>() == ITEM_HEAD_BYTES);
const _: () =
    assert!(std::mem::offset_of!(FrameItemHead, client) == 0 && std::mem::offset_of!(FrameItemHead, length) == 4);

/// The items of a frame that is being made.
#[derive(Default)]
pub struct FrameItems {
    writer: Writer,
}

impl FrameItems {
    /// Appends an item of a client, which `encode` writes.
    pub fn put(&mut self, client: ClientId, encode: impl FnOnce(&mut Writer)) {
        let head = self.writer.len();
        self.writer.u32(client.0);
        self.writer.u32(0);
        encode(&mut self.writer);
        let length = u32::try_from(self.writer.len() - head - ITEM_HEAD_BYTES).expect("an item fits an area");
        self.writer.set_u32(head + 4, length);
    }

    /// The payload of their frame.
    pub fn payload(&self) -> &[u8] {
        &self.writer
    }

    /// The items of a payload, in their order.
    pub fn parse(payload: &[u8]) -> Result<Vec<(ClientId, &[u8])>, Short> {
        let (mut reader, mut items) = (Reader::new(payload), Vec::new());
        while !reader.is_empty() {
            let head = FrameItemHead { client: reader.u32()?, length: reader.u32()? };
            items.push((ClientId(head.client), reader.take(head.length as usize)?));
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_read_back_and_a_payload_cut_within_one_is_refused() {
        let mut items = FrameItems::default();
        items.put(ClientId(7), |writer| writer.u16(0x102));
        items.put(ClientId(1), |_| ());
        items.put(ClientId(7), |writer| writer.u32(9));
        let payload = items.payload();
        let expected = [(ClientId(7), &[2, 1][..]), (ClientId(1), &[]), (ClientId(7), &[9, 0, 0, 0])];
        assert_eq!(FrameItems::parse(payload), Ok(expected.to_vec()));
        let ends = [0, 10, 18, 30];
        for length in 0..payload.len() {
            assert_eq!(FrameItems::parse(&payload[..length]).is_ok(), ends.contains(&length), "{length} bytes");
        }
    }
}
