//! Reads of pages for a merge or a batch that comes for them later. The pages go into the cache.

use super::context::OrderedMeans;
use super::fetches::{arguments_of_flash, read_error};
use super::merges::MergeWish;
use super::{TAG_PAGE, scratch};
use crate::ordered::cache::Installed;
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use crate::ordered::node_table::{HomedNode, NodeHome, NodeId};
use tapetum_base::error::Error;
use tapetum_base::keyspace::KeyspaceId;
use tapetum_drive::programs::node::{GetRequests, NodeFlags};
use tapetum_drive::{Lease, Purpose, Returned};

pub(super) struct PageRead {
    pub keyspace: KeyspaceId,
    pub node: NodeId,
    pub home: NodeHome,
    /// A key that the node seems to have: the program that checks the page looks for it.
    pub key: Vec<u8>,
    /// The part that comes for the page.
    pub reader: PageReader,
}

pub(super) enum PageReader {
    Merge(MergeWish),
    Batch,
}

pub(super) enum PageReadEnd {
    Done,
    /// The cache had no place for it.
    NoRoom,
    /// The node has moved to another slot.
    Moved,
    Failed(Error),
}

/// The reads in flight, by their numbers.
#[derive(Default)]
pub(super) struct PageReads {
    reading: Vec<Option<PageRead>>,
}

impl PageReads {
    fn add(&mut self, read: PageRead) -> usize {
        let free = self.reading.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.reading.push(None);
            self.reading.len() - 1
        });
        self.reading[number] = Some(read);
        number
    }

    /// Whether a node's page is being read.
    pub fn has(&self, node: NodeId) -> bool {
        self.reading.iter().flatten().any(|read| read.node == node)
    }

    /// The number of reads in flight.
    pub fn count(&self) -> usize {
        self.reading.iter().flatten().count()
    }

    /// Reads a page. Gives the read back if that is not possible now: there is no memory for it, or no place in the queue, or nothing to be read.
    pub fn begin(&mut self, (cx, core): OrderedMeans<'_>, read: PageRead) -> Option<PageRead> {
        let Some(tree) = cx.tree_of(read.keyspace).ok().map(|tree| cx.trees[tree].tree.clone()) else {
            return Some(read);
        };
        let Some(arguments) = arguments_of_flash(&tree.nodes, read.home, NodeFlags::RAW_IN_PAGE) else {
            return Some(read);
        };
        let has_credit = cx.has_credit(core);
        let Some((page, mut scratch)) = has_credit.then(|| cx.take_both(core)).flatten() else { return Some(read) };
        GetRequests::new(&arguments, &mut cx.parameters).push(&read.key);
        let (program, flash) = (cx.state.programs.get, tree.nodes.map().flash(read.home.slot));
        let operation =
            scratch::read_and_look(&core.queue, Purpose::Put, program, flash, &cx.parameters, &page, &mut scratch);
        let number = self.add(read) as u64;
        cx.submit(core, TAG_PAGE | number, Purpose::Put, operation, Lease::Buffers([page, scratch]));
        None
    }

    /// Called when a page was read or the read failed. Returns the reader and the result.
    pub fn was_read(
        &mut self,
        (cx, core): OrderedMeans<'_>,
        number: usize,
        Returned { completion, lease }: Returned,
    ) -> (PageReader, PageReadEnd) {
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        cx.give_scratch(core, scratch);
        let Some(PageRead { keyspace, node, home, reader, .. }) = self.reading[number].take() else {
            unreachable!("it is on its way")
        };
        if !completion.is_success() {
            cx.give_page(page);
            return match cx.state.cache.is_current(node, home) {
                true => (reader, PageReadEnd::Failed(read_error(core, HomedNode { node, home }, &completion))),
                // Another image is in the slot: the node has moved.
                false => (reader, PageReadEnd::Moved),
            };
        }
        let used = if matches!(reader, PageReader::Batch) { PageUse::ByKey } else { PageUse::ByScan };
        let (page, end) = match cx.state.cache.install(node, home, page, PageMeta::new(keyspace.0, used)) {
            Installed::Done(page) | Installed::Stale(page) => (page, PageReadEnd::Done),
            Installed::NoRoom(page) => (page, PageReadEnd::NoRoom),
        };
        cx.give_page(page);
        (reader, end)
    }
}
