//! Iteration in order, both ways, beside changes.
//!
//! A cursor keeps its last anchor and nothing of the tree; each step is a query from there. So it sees each anchor that is
//! there throughout once, in order, and it may rest for as long as it likes. A step costs a walk from the root, which is
//! little beside the page that the caller reads for each anchor.

use super::tree_memory::TreeMemory;
use super::{AnchorKey, SearchHandle};

/// A place among the anchors, or before the first or behind the last one.
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

    /// At this key, which need not be an anchor: the first step goes to its neighbour.
    pub fn at(key: &AnchorKey) -> AnchorCursor {
        AnchorCursor { at: key.clone(), place: CursorPlace::Anchor }
    }

    /// The anchor that the last step went to.
    pub fn anchor(&self) -> &[u8] {
        &self.at
    }

    /// Goes to the next anchor and returns its value; or behind the last one.
    pub fn forward<M: TreeMemory>(&mut self, handle: &mut SearchHandle<M>) -> Option<u64> {
        let value = match self.place {
            CursorPlace::Start => Some(handle.floor(b"", &mut self.at)),
            CursorPlace::Anchor => handle.next(&mut self.at),
            CursorPlace::End => None,
        };
        self.place = if value.is_some() { CursorPlace::Anchor } else { CursorPlace::End };
        value
    }

    /// Goes to the anchor before and returns its value; or before the first one.
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
