//! Iteration in order, in both directions, concurrent with changes.
//!
//! A cursor keeps its last anchor and nothing of the tree; each step is a query from there. So it sees each anchor that exists throughout once, in
//! order, and may pause for any time. A step costs a walk from the root, which is little compared with the page that the caller reads for each
//! anchor.

use super::tree_memory::TreeMemory;
use super::{AnchorKey, SearchHandle};

/// A position at an anchor, before the first one, or behind the last one.
pub struct AnchorCursor {
    at: AnchorKey,
    place: CursorPlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CursorPlace {
    /// Before the empty key.
    Start,
    /// At an anchor, which may have been removed since.
    Anchor,
    /// Behind the last anchor.
    End,
}

impl AnchorCursor {
    /// Before the first anchor.
    pub fn at_start() -> AnchorCursor {
        AnchorCursor { at: AnchorKey::new(), place: CursorPlace::Start }
    }

    /// Behind the last anchor.
    pub fn at_end() -> AnchorCursor {
        AnchorCursor { at: AnchorKey::new(), place: CursorPlace::End }
    }

    /// At this key, which need not be an anchor. The first step goes to its neighbour.
    pub fn at(key: &AnchorKey) -> AnchorCursor {
        AnchorCursor { at: key.clone(), place: CursorPlace::Anchor }
    }

    /// The anchor of the last step.
    pub fn anchor(&self) -> &[u8] {
        &self.at
    }

    /// Moves to the next anchor and returns its value; moves to the end if there is none.
    pub fn forward<M: TreeMemory>(&mut self, handle: &mut SearchHandle<M>) -> Option<u64> {
        let value = match self.place {
            CursorPlace::Start => Some(handle.floor(b"", &mut self.at)),
            CursorPlace::Anchor => handle.next(&mut self.at),
            CursorPlace::End => None,
        };
        self.place = if value.is_some() { CursorPlace::Anchor } else { CursorPlace::End };
        value
    }

    /// Moves to the previous anchor and returns its value; moves to the start if there is none.
    pub fn back<M: TreeMemory>(&mut self, handle: &mut SearchHandle<M>) -> Option<u64> {
        let value = match self.place {
            CursorPlace::Start => None,
            CursorPlace::Anchor => handle.previous(&mut self.at),
            CursorPlace::End => Some(handle.last(&mut self.at)),
        };
        self.place = if value.is_some() { CursorPlace::Anchor } else { CursorPlace::Start };
        value
    }
}
