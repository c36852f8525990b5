//! Reads all groups of data nodes of an ordered keyspace that may be damaged.

use crate::ordered::images::{ImageHead, NodeImages};
use crate::ordered::slabs::SlotSpace;
use crate::ordered::slabs::slot_class::PAGE_BYTES;
use crate::ordered::slabs::slot_round::RoundImages;
use tapetum_base::error::Error;
use tapetum_base::media::io::Io;
use tapetum_kernels::ordered::{NodeError, NodeRef, SlotSalt};

/// Pages that are read at once.
const PIECE_PAGES: u32 = 64;

/// A slot that holds neither an image nor zeros.
pub struct BadSlot {
    pub slot: u32,
    /// It is in a group to which images were written, so a crash may have left it.
    pub may_be_torn: bool,
    /// The head that it seems to have had.
    pub head: Option<BadHead>,
}

/// The head of an image that does not hold.
pub struct BadHead {
    pub stamp: u64,
    pub low: Vec<u8>,
    pub high: Option<Vec<u8>>,
}

/// The images and bad slots that were found.
#[derive(Default)]
pub struct TreeNodes {
    pub images: NodeImages,
    /// For each image, whether it names extensions.
    pub named: Vec<bool>,
    pub bad: Vec<BadSlot>,
    /// Images that another one attests, and that are not there.
    pub missing: u32,
}

impl TreeNodes {
    /// Reads all nodes of a space.
    ///
    /// # Errors
    /// When a node is of a version that this code does not know.
    pub async fn read(io: &Io, space: &SlotSpace) -> Result<TreeNodes, Error> {
        let (mut nodes, map) = (TreeNodes::default(), *space.map());
        let (round, mut counted) = (space.found_round(), RoundImages::default());
        let mut buffer = io.allocate((PIECE_PAGES as u64 * PAGE_BYTES) as usize).await?;
        for group in space.groups() {
            let (first, pages) = (map.first_of(group.first), map.pages(group.extents));
            for from in (0..pages).step_by(PIECE_PAGES as usize) {
                let count = PIECE_PAGES.min(pages - from);
                let bytes = count as usize * PAGE_BYTES as usize;
                let was_read = io.read(map.flash(first + from), &mut buffer, 0, bytes).await.is_ok();
                for number in 0..count {
                    let slot = first + from + number;
                    let at = number as usize * PAGE_BYTES as usize;
                    let page = at..at + PAGE_BYTES as usize;
                    // Page by page, where some of them cannot be read.
                    let is_there = was_read
                        || io.read(map.flash(slot), &mut buffer, page.start, PAGE_BYTES as usize).await.is_ok();
                    if is_there {
                        let place = from + number;
                        let may_be_torn =
                            group.open && round.as_ref().is_none_or(|round| round.may_be_torn(group.first, place));
                        let bytes = io.look(&buffer, page);
                        if nodes.take(space, slot, group.version, may_be_torn, bytes)?
                            && let (Some(round), Ok(node)) = (&round, NodeRef::look(bytes))
                        {
                            counted.look(round, group.first, place, &node);
                        }
                    } else {
                        nodes.bad.push(BadSlot { slot, may_be_torn: false, head: None });
                    }
                }
            }
        }
        nodes.missing = counted.missing();
        if nodes.missing > 0 {
            // Slots that look torn then held durable images.
            nodes.bad.iter_mut().for_each(|bad| bad.may_be_torn = false);
        }
        Ok(nodes)
    }

    /// Takes a page; whether it is an image.
    fn take(
        &mut self,
        space: &SlotSpace,
        slot: u32,
        version: u64,
        may_be_torn: bool,
        page: &[u8],
    ) -> Result<bool, Error> {
        let salt = SlotSalt { store: space.options().store_id, slot: space.map().address(slot), version };
        let is_own =
            |node: &NodeRef<'_>| node.keyspace() == space.options().keyspace.0 && u32::try_from(node.id()).is_ok();
        match NodeRef::check(page, salt) {
            Ok(node) if is_own(&node) => {
                let head = ImageHead {
                    low: node.low_fence(),
                    high: node.high_fence(),
                    stamp: node.stamp(),
                    slot,
                    id: node.id() as u32,
                    records: node.count() as u16,
                };
                self.images.push(&head);
                self.named.push(node.extensions().next().is_some());
                return Ok(true);
            }
            Err(NodeError::Blank) => {}
            Err(NodeError::Version(version)) => {
                return Err(Error::OtherFormat(format!(
                    "a data node has the version {version}, which this tapetum does not know: use the newer tapetum that wrote it"
                )));
            }
            other => {
                let may_be_torn = may_be_torn && other.err() == Some(NodeError::Checksum);
                let looked = NodeRef::look(page).ok().filter(is_own);
                let looked = looked.filter(|node| node.high_fence().is_none_or(|high| node.low_fence() < high));
                let head = looked.map(|node| BadHead {
                    stamp: node.stamp(),
                    low: node.low_fence().to_vec(),
                    high: node.high_fence().map(<[u8]>::to_vec),
                });
                self.bad.push(BadSlot { slot, may_be_torn, head });
            }
        }
        Ok(false)
    }

    /// Counts the image in a slot among those that do not hold.
    pub fn put_aside(&mut self, slot: u32) {
        let (mut images, mut named) = (NodeImages::default(), Vec::new());
        for (image, names) in (0..self.images.len() as u32).zip(&self.named) {
            let head = self.images.get(image);
            if head.slot != slot {
                images.push(&head);
                named.push(*names);
                continue;
            }
            let (low, high) = (head.low.to_vec(), head.high.map(<[u8]>::to_vec));
            let head = Some(BadHead { stamp: head.stamp, low, high });
            self.bad.push(BadSlot { slot, may_be_torn: false, head });
        }
        (self.images, self.named) = (images, named);
    }
}
