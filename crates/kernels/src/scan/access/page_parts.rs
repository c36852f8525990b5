//! Pages of nodes, cut from bytes that come in parts of any length.

use super::EntrySink;
use crate::ordered::NODE_BYTES;

#[derive(Default)]
pub(super) struct PageParts {
    /// The beginning of a page.
    part: Vec<u8>,
}

impl PageParts {
    /// Shows each page that is whole with these bytes, and the bytes that it lies in, which go when those pages were shown. Ends early where
    /// `page` gives an error, or that it wants no more.
    pub fn take<E>(
        &mut self,
        bytes: &[u8],
        sink: &mut dyn EntrySink,
        mut page: impl FnMut(&[u8], &[u8], &mut dyn EntrySink) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut rest = bytes;
        if !self.part.is_empty() {
            let (taken, behind) = rest.split_at(rest.len().min(NODE_BYTES - self.part.len()));
            self.part.extend_from_slice(taken);
            rest = behind;
            if self.part.len() < NODE_BYTES {
                return Ok(true);
            }
            let mut is_wanted = page(&self.part, &self.part, sink)?;
            is_wanted &= sink.leave(&self.part);
            self.part.clear();
            if !is_wanted {
                return Ok(false);
            }
        }
        let (pages, part) = rest.as_chunks::<NODE_BYTES>();
        let mut is_wanted = true;
        for whole in pages {
            is_wanted = page(whole, rest, sink)?;
            if !is_wanted {
                break;
            }
        }
        is_wanted &= sink.leave(rest);
        if is_wanted {
            self.part.extend_from_slice(part);
        }
        Ok(is_wanted)
    }
}
