//! Reads of pages for whoever comes for them later: a merge, or a batch. They go into the cache.

use super::fetches::{arguments_of_flash, read_error};
use super::merges::MergeWish;
use super::{OrderedSession, TAG_PAGE, scratch};
use crate::ordered::cache::Installed;
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use crate::ordered::node_table::{NodeHome, NodeId};
use tapetum_base::keyspace::KeyspaceId;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{GetRequests, NodeFlags};
use tapetum_drive::{Lease, Purpose, Returned};

pub(super) struct PageRead {
    pub keyspace: KeyspaceId,
    pub node: NodeId,
    pub home: NodeHome,
    /// One that the node seems to have: the program that checks the page looks for it.
    pub key: Vec<u8>,
    /// Who comes for it.
    pub reader: PageReader,
}

pub(super) enum PageReader {
    Merge(MergeWish),
    Batch,
}

/// The reads that are on their way, by their numbers.
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
}

impl OrderedSession {
    /// Reads a page, if there is memory for it now.
    pub(super) fn read_page(&mut self, core: &mut SessionCore, read: PageRead) {
        let Some(tree) = self.tree_of(read.keyspace).ok().map(|tree| self.trees[tree].tree.clone()) else { return };
        let Some(arguments) = arguments_of_flash(&tree.nodes, read.home, NodeFlags::RAW_IN_PAGE) else { return };
        let has_credit = self.has_credit(core);
        let Some((page, mut scratch)) = has_credit.then(|| self.take_both(core)).flatten() else { return };
        GetRequests::new(&arguments, &mut self.reused.parameters).push(&read.key);
        let what = (self.state.programs.get, tree.nodes.map().flash(read.home.slot));
        let operation =
            scratch::read_and_look((&core.queue, Purpose::Put), what, &self.reused.parameters, (&page, &mut scratch));
        let number = self.page_reads.add(read) as u64;
        self.submit(core, (TAG_PAGE | number, Purpose::Put), operation, Lease::Buffers([page, scratch]));
    }

    pub(super) fn page_was_read(&mut self, core: &mut SessionCore, number: usize, returned: Returned) {
        let Lease::Buffers([page, scratch]) = returned.lease else { unreachable!("it was lent both") };
        self.give_scratch(core, scratch);
        let Some(PageRead { keyspace, node, home, reader, .. }) = self.page_reads.reading[number].take() else {
            unreachable!("it is on its way")
        };
        if !returned.completion.is_success() {
            self.give_page(page);
            // Another image is in the slot where the node has moved. A merge is not worth an error: the next operation there has it.
            if matches!(reader, PageReader::Batch) && self.state.cache.is_current(node, home) {
                self.preparation.failed = Some(read_error(core, (node, home), &returned.completion));
            }
            return;
        }
        let used = if matches!(reader, PageReader::Batch) { PageUse::ByKey } else { PageUse::ByScan };
        match self.state.cache.install(node, home, page, PageMeta::new(keyspace.0, used)) {
            Installed::Done(page) | Installed::Stale(page) => self.give_page(page),
            Installed::NoRoom(page) => {
                self.give_page(page);
                self.preparation.wants_room |= matches!(reader, PageReader::Batch);
            }
        }
        if let PageReader::Merge(wish) = reader {
            self.merges.wish_again(wish);
        }
    }
}
