//! Scans: the items of a range of keys in their order, or against it, a part at a time.
//!
//! ```text
//! start ─► node of the bound ─┬─ cached ─► program scans ─┬─ enough ──────────────► held until durable ─► part, and where to go on
//!              ▲              └─ not ─► read and scanned ─┘
//!              └──────────── the next node, from the fence of this one ◄──┘
//! ```
//! A part shows each node as it was at one moment.
//!
//! Values in extensions are read one by one when their node was scanned. If one is not there any more, the scan goes back to its key.
//!
//! The pages of the next nodes are read ahead ([`super::scan_ahead`]). What a short scan reads goes into the cache; what a long one reads does
//! not: whoever reads a range once would drive out what others use.

use super::extension_read::{ExtensionRead, ExtensionStep, ReadOf};
use super::extensions::{damaged_extension, piece_tag};
use super::fetches::{arguments_of_flash, read_error};
use super::looks::{arguments, damaged};
use super::merges::ALL_DEAD;
use super::scan_ahead::{AheadRead, AheadState, ScanAhead, page_range};
use super::scan_op::{OutsideItem, ScanOp, ScanStage, bound, is_crossed};
use super::{OrderedSession, TAG_SCAN, scratch};
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use crate::ordered::cache::{Installed, PageLook};
use crate::ordered::node_table::{NodeHome, NodeId};
use crate::ordered::search::AnchorKey;
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::engine::engine_session::EngineWait;
use tapetum_base::error::Error;
use tapetum_base::keyspace::key_range::{KeyBound, KeyRange, ScanPart, ScanReply};
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::session::order::closed;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::fail_point;
use tapetum_drive::programs::node::{NodeArguments, NodeFlags, ScanRequest};
use tapetum_drive::{Lease, LocalBuffer, Purpose, Returned};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX};

#[derive(Default)]
pub(super) struct Scans {
    scans: Vec<Option<Box<ScanOp>>>,
    free: Vec<usize>,
    /// Reads ahead that are on their way, by their numbers.
    aheads: Vec<Option<Arc<AheadRead>>>,
    replies: Vec<ScanReply>,
}

impl Scans {
    pub fn count(&self) -> usize {
        self.scans.len() - self.free.len() + self.replies.len()
    }

    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.scans.iter().flatten().map(|scan| scan.token)
    }

    fn begin(&self) -> bool {
        self.scans.iter().flatten().any(|scan| matches!(scan.stage, ScanStage::Begins))
    }

    /// Whether some wait for others.
    pub fn wait(&self) -> bool {
        self.scans.iter().flatten().any(|scan| matches!(scan.stage, ScanStage::Begins | ScanStage::Holds))
    }

    pub fn waits(&self) -> EngineWait {
        match (self.begin(), self.wait()) {
            (true, _) => EngineWait::Poll,
            (false, true) => EngineWait::Change,
            (false, false) => EngineWait::Commands,
        }
    }

    pub fn add_ahead(&mut self, read: Arc<AheadRead>) -> usize {
        let free = self.aheads.iter().position(Option::is_none);
        let number = free.unwrap_or(self.aheads.len());
        match free {
            Some(number) => self.aheads[number] = Some(read),
            None => self.aheads.push(Some(read)),
        }
        number
    }

    pub fn take_ahead(&mut self, number: usize) -> Arc<AheadRead> {
        let Some(read) = self.aheads[number].take() else { unreachable!("read {number} is on its way") };
        read
    }

    /// Something that was read ahead is there.
    pub fn wake_ahead(&mut self) {
        for scan in self.scans.iter_mut().flatten().filter(|scan| matches!(scan.stage, ScanStage::AwaitsAhead)) {
            scan.stage = ScanStage::Begins;
        }
    }

    /// Reads of pages that are on their way.
    #[cfg(test)]
    pub fn reads(&self) -> usize {
        let of_scans = self.scans.iter().flatten().filter(|scan| matches!(scan.stage, ScanStage::Reads(..))).count();
        of_scans + self.aheads.iter().flatten().count()
    }

    fn take(&mut self, number: usize) -> Box<ScanOp> {
        let Some(scan) = self.scans[number].take() else { unreachable!("scan {number} is in its place") };
        scan
    }

    fn end(&mut self, number: usize, token: u64, part: Result<ScanPart, Error>) {
        self.free.push(number);
        self.replies.push(ScanReply { token, part });
    }
}

impl OrderedSession {
    /// Starts a scan, whose first part comes as a reply with `token`. It has up to so many items.
    pub fn start_scan(&mut self, (keyspace, token): (KeyspaceRef, u64), range: KeyRange, items_max: usize) {
        if range.from.key().len().max(range.to.key().len()) > NODE_KEY_BYTES_MAX {
            let error = Error::KeyTooLong { limit_bytes: NODE_KEY_BYTES_MAX };
            return self.scans.replies.push(ScanReply { token, part: Err(error) });
        }
        let is_over = is_crossed(&range);
        let scan = Box::new(ScanOp {
            token,
            keyspace,
            range,
            items: Vec::new(),
            items_max,
            bytes: 0,
            outside: VecDeque::new(),
            ahead: ScanAhead::default(),
            mismatched: None,
            tickets: Vec::new(),
            deleted_by: 0,
            is_over,
            stage: if is_over { ScanStage::Holds } else { ScanStage::Begins },
        });
        match self.scans.free.pop() {
            Some(number) => self.scans.scans[number] = Some(scan),
            None => self.scans.scans.push(Some(scan)),
        }
    }

    /// Takes the answers that are there.
    pub fn take_scanned(&mut self, replies: &mut Vec<ScanReply>) {
        replies.append(&mut self.scans.replies);
    }

    pub(super) fn attempt_scans(&mut self, core: &mut SessionCore) {
        for number in 0..self.scans.scans.len() {
            let stage = self.scans.scans[number].as_ref().map(|scan| &scan.stage);
            match stage {
                Some(ScanStage::Begins) => {
                    let scan = self.scans.take(number);
                    self.attempt_scan(core, number, scan);
                }
                Some(ScanStage::Holds) => self.release_scan(number),
                _ => {}
            }
        }
    }

    fn release_scan(&mut self, number: usize) {
        let base = self.state.base.clone();
        let waits = base.log.sync() == Sync::Always;
        let Some(scan) = &mut self.scans.scans[number] else { return };
        scan.tickets.retain(|ticket| waits && !ticket.is_done());
        let is_marked = base.log.may_acknowledge(scan.deleted_by);
        if !is_marked {
            base.log.advance(true, base.drive.env().now_us());
        }
        if scan.tickets.is_empty() && is_marked {
            let ScanOp { token, items, range, is_over, .. } = *self.scans.take(number);
            let rest = (!is_over).then_some(range);
            self.scans.end(number, token, Ok(ScanPart { items, rest }));
        } else if let Err(error) = base.log.poisoned() {
            let token = self.scans.take(number).token;
            self.scans.end(number, token, Err(error));
        }
    }

    pub(super) fn fail_scans(&mut self) {
        for number in 0..self.scans.scans.len() {
            if matches!(&self.scans.scans[number], Some(scan) if matches!(scan.stage, ScanStage::Begins | ScanStage::Holds))
            {
                let token = self.scans.take(number).token;
                self.scans.end(number, token, Err(closed()));
            }
        }
    }

    /// Looks for the node that a scan goes on in, and scans it.
    fn attempt_scan(&mut self, core: &mut SessionCore, number: usize, mut scan: Box<ScanOp>) {
        let found = core.base.refuse_dropped(scan.keyspace).and_then(|()| self.tree_of(scan.keyspace.id()));
        let tree = match found {
            Ok(tree) => tree,
            Err(error) => return self.scans.end(number, scan.token, Err(error)),
        };
        if !self.has_credit(core) {
            self.scans.scans[number] = Some(scan);
            return;
        }
        if let Some(outside) = scan.outside.pop_front() {
            return self.read_outside(core, (number, scan), tree, outside);
        }
        if scan.has_enough() {
            scan.stage = ScanStage::Holds;
            self.scans.scans[number] = Some(scan);
            return self.release_scan(number);
        }
        let node = self.scan_node(tree, &scan.range);
        let looked = self.state.cache.take(node, scan.keyspace.id().0, scan.page_use());
        let ahead = match looked {
            PageLook::Absent(home) => scan.ahead.find(core, node, home),
            _ => None,
        };
        self.read_ahead(core, tree, &mut scan);
        let home = match (looked, ahead) {
            (PageLook::Absent(home), Some(read)) => {
                return self.scan_ahead((number, scan), core, tree, ((node, home), read));
            }
            (PageLook::Absent(home), None) => home,
            (PageLook::Busy | PageLook::Gone, _) => {
                self.again.tries = true;
                self.scans.scans[number] = Some(scan);
                return;
            }
            (PageLook::Taken(page), _) => {
                let Some(mut scratch) = self.take_scratch(core) else {
                    self.state.cache.give_back(node, page, |_| ());
                    self.again.wants_room = true;
                    self.scans.scans[number] = Some(scan);
                    return;
                };
                self.scan_parameters(core, &mut scan, arguments(NodeFlags::NONE));
                let on = (&core.queue, Purpose::Scan);
                let operation =
                    scratch::look(on, self.state.programs.scan, &self.reused.parameters, (&page, &mut scratch));
                scan.stage = ScanStage::Looks(node);
                self.scans.scans[number] = Some(scan);
                self.pages_taken += 1;
                let lease = Lease::Buffers([page, scratch]);
                return self.submit(core, (TAG_SCAN | number as u64, Purpose::Scan), operation, lease);
            }
        };
        let nodes = self.trees[tree].tree.nodes.clone();
        let arguments = arguments_of_flash(&nodes, home, NodeFlags::NONE);
        let buffers = self.take_both(core);
        let (Some(arguments), Some((page, mut scratch))) = (arguments, buffers) else {
            self.again.wants_room = true;
            self.scans.scans[number] = Some(scan);
            return;
        };
        self.scan_parameters(core, &mut scan, arguments);
        let (on, what) = ((&core.queue, Purpose::Scan), (self.state.programs.scan, nodes.map().flash(home.slot)));
        let operation = scratch::read_and_look(on, what, &self.reused.parameters, (&page, &mut scratch));
        scan.stage = ScanStage::Reads(node, home);
        self.scans.scans[number] = Some(scan);
        let lease = Lease::Buffers([page, scratch]);
        self.submit(core, (TAG_SCAN | number as u64, Purpose::Scan), operation, lease);
    }

    /// Scans a page that was read ahead, or waits for it.
    fn scan_ahead(
        &mut self,
        (number, mut scan): (usize, Box<ScanOp>),
        core: &mut SessionCore,
        tree: usize,
        ((node, home), read): ((NodeId, NodeHome), Arc<AheadRead>),
    ) {
        let page = match read.take() {
            AheadState::Here(page) => page,
            AheadState::OnItsWay => {
                scan.stage = ScanStage::AwaitsAhead;
                self.scans.scans[number] = Some(scan);
                return;
            }
            AheadState::Gone => {
                // Who reads it by itself is told what is wrong.
                scan.ahead = ScanAhead::default();
                self.again.tries = true;
                self.scans.scans[number] = Some(scan);
                return;
            }
        };
        let arguments = arguments_of_flash(&self.trees[tree].tree.nodes, home, NodeFlags::NONE);
        let scratch = self.take_scratch(core);
        let (Some(arguments), Some(mut scratch)) = (arguments, scratch) else {
            read.give_back(page);
            self.again.wants_room = true;
            self.scans.scans[number] = Some(scan);
            return;
        };
        self.scan_parameters(core, &mut scan, arguments);
        let (on, program) = ((&core.queue, Purpose::Scan), self.state.programs.scan);
        let input = page_range(&page, read.page_at(home.slot));
        let operation = scratch::look_at(on, program, &self.reused.parameters, (input, &mut scratch));
        scan.stage = ScanStage::LooksAhead(node, home, read);
        self.scans.scans[number] = Some(scan);
        self.pages_taken += 1;
        self.submit(core, (TAG_SCAN | number as u64, Purpose::Scan), operation, Lease::Buffers([page, scratch]));
    }

    /// The node in which the next item of a range may be.
    fn scan_node(&mut self, tree: usize, range: &KeyRange) -> NodeId {
        let (search, anchor) = (&mut self.trees[tree].search, &mut self.reused.anchor);
        let found = match (range.is_reverse, &range.to) {
            (false, _) => search.floor(range.from.key(), anchor),
            (true, KeyBound::Unbounded) => search.last(anchor),
            (true, KeyBound::Included(key)) => search.floor(key, anchor),
            (true, KeyBound::Excluded(key)) => {
                // The greatest anchor below the bound: keys below it are in that node.
                *anchor = AnchorKey::of(key);
                search.previous(anchor).unwrap_or_else(|| search.floor(b"", anchor))
            }
        };
        NodeId(found as u32)
    }

    fn scan_parameters(&mut self, core: &SessionCore, scan: &mut ScanOp, arguments: NodeArguments) {
        let flags = if scan.range.is_reverse { NodeFlags::REVERSE } else { NodeFlags::NONE };
        let (watermark, now) = (core.base.keyspaces.watermark(scan.keyspace.id()), core.base.now());
        let now = if fail_point!(OrderedScanExpired) { 0 } else { now };
        scan.deleted_by = core.base.keyspaces.mark(scan.keyspace.id()).watermark;
        let arguments = NodeArguments { watermark, now, flags: arguments.flags.with(flags), ..arguments };
        let limit = (scan.items_max - scan.items.len()).min(usize::from(u16::MAX)) as u16;
        let request = ScanRequest { from: bound(&scan.range.from), to: bound(&scan.range.to), limit };
        request.encode(&arguments, &mut self.reused.parameters);
    }

    /// Reads the extension of an item.
    fn read_outside(
        &mut self,
        core: &mut SessionCore,
        (number, mut scan): (usize, Box<ScanOp>),
        tree: usize,
        outside: OutsideItem,
    ) {
        let tree = &self.trees[tree].tree;
        let key_bytes = scan.items[outside.place].key.len();
        let read = ExtensionRead::of(&outside.reference, key_bytes, |class| tree.extensions(class));
        let Some(mut read) = read else { return self.scan_mismatched((number, scan), outside) };
        match read.begin(core, Purpose::Scan, piece_tag(self.slot.tag(TAG_SCAN | number as u64))) {
            true => scan.stage = ScanStage::ReadsExtension(outside, Box::new(read)),
            false => {
                self.again.wants_room = true;
                scan.outside.push_front(outside);
            }
        }
        self.scans.scans[number] = Some(scan);
    }

    fn was_read_outside(
        &mut self,
        core: &mut SessionCore,
        (number, mut scan): (usize, Box<ScanOp>),
        (outside, mut read): (OutsideItem, Box<ExtensionRead>),
        piece: (usize, Returned),
    ) {
        let OutsideItem { place, value_bytes, .. } = outside;
        let of = ReadOf { key: &scan.items[place].key, value_bytes, purpose: Purpose::Scan };
        let value = match read.completed(core, of, piece, piece_tag(self.slot.tag(TAG_SCAN | number as u64))) {
            ExtensionStep::OnItsWay => {
                scan.stage = ScanStage::ReadsExtension(outside, read);
                self.scans.scans[number] = Some(scan);
                return;
            }
            ExtensionStep::Another => return self.scan_mismatched((number, scan), outside),
            ExtensionStep::Failed(failed) => {
                let error = Error::of_command(core.queue.drive(), "read", &failed);
                return self.scans.end(number, scan.token, Err(error));
            }
            ExtensionStep::Value(value) => value,
        };
        scan.mismatched = None;
        scan.items[outside.place].value = value;
        self.again.tries = true;
        self.scans.scans[number] = Some(scan);
    }

    /// A scan goes back to an item that was replaced meanwhile; if it names the same extension as before, the store is damaged.
    fn scan_mismatched(&mut self, (number, mut scan): (usize, Box<ScanOp>), outside: OutsideItem) {
        if scan.mismatched.replace(outside.reference) == Some(outside.reference) {
            return self.scans.end(number, scan.token, Err(damaged_extension(&outside.reference)));
        }
        scan.go_back_to(outside.place);
        self.again.tries = true;
        self.scans.scans[number] = Some(scan);
    }

    pub(super) fn complete_scan(&mut self, core: &mut SessionCore, number: usize, piece: (usize, Returned)) {
        let mut scan = self.scans.take(number);
        let stage = match std::mem::replace(&mut scan.stage, ScanStage::Begins) {
            ScanStage::ReadsExtension(outside, read) => {
                return self.was_read_outside(core, (number, scan), (outside, read), piece);
            }
            stage => stage,
        };
        let Returned { completion, lease } = piece.1;
        let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
        let at = if let ScanStage::LooksAhead(_, home, read) = &stage { read.page_at(home.slot) } else { 0 };
        let gone_on = match completion.is_success() {
            true => scan.go_on(core, (&page, at, &scratch), completion.result),
            false => None,
        };
        self.give_scratch(core, scratch);
        let error = match stage {
            ScanStage::Looks(node) => {
                self.pages_taken -= 1;
                let ticket = self.state.cache.give_back(node, page, |meta| meta.wait_for(meta.changed_stamp));
                scan.tickets.extend(ticket.filter(|_| !fail_point!(OrderedScanUndurable)));
                gone_on.is_none().then(|| damaged(node))
            }
            ScanStage::Reads(..) | ScanStage::LooksAhead(..) => {
                let keeps = gone_on.is_some() && scan.page_use() == PageUse::ByKey;
                let (node, home, page) = match stage {
                    ScanStage::LooksAhead(node, home, read) => {
                        self.pages_taken -= 1;
                        let copy = if keeps { self.copy_of_page(core, (&page, at)) } else { None };
                        read.give_back(page);
                        (node, home, copy)
                    }
                    ScanStage::Reads(node, home) => (node, home, Some(page)),
                    _ => unreachable!("it is one of the two"),
                };
                let is_current = self.state.cache.is_current(node, home);
                if let Some(page) = page {
                    let page = if keeps { self.keep_page(&scan, (node, home), page) } else { page };
                    self.give_page(page);
                }
                if !is_current {
                    // It shows what was.
                    scan.take_back(gone_on.as_ref());
                    self.again.tries = true;
                    self.scans.scans[number] = Some(scan);
                    return;
                }
                gone_on.is_none().then(|| read_error(core, (node, home), &completion))
            }
            ScanStage::Begins | ScanStage::AwaitsAhead | ScanStage::ReadsExtension(..) | ScanStage::Holds => {
                unreachable!("it has a command for a node on its way")
            }
        };
        match (error, gone_on) {
            (Some(error), _) => return self.scans.end(number, scan.token, Err(error)),
            (None, Some(step)) => {
                let dead = scan.step(step);
                dead.iter().for_each(|key| self.wish_to_merge(scan.keyspace.id(), key, ALL_DEAD));
            }
            (None, None) => unreachable!("it failed"),
        }
        self.again.tries = true;
        self.scans.scans[number] = Some(scan);
    }

    /// A page among those that were read together, in a buffer of its own. The host has seen all of it by now.
    fn copy_of_page(&mut self, core: &SessionCore, (pages, at): (&LocalBuffer, usize)) -> Option<LocalBuffer> {
        let mut copy = self.take_page(core)?;
        let into = core.queue.fill(Purpose::Scan, &mut copy, 0..NODE_BYTES);
        into.copy_from_slice(&pages.bytes()[at..at + NODE_BYTES]);
        Some(copy)
    }

    /// Puts a page that was scanned into the cache, if it is the node and there is a place; a buffer for it.
    fn keep_page(&self, scan: &ScanOp, (node, home): (NodeId, NodeHome), page: LocalBuffer) -> LocalBuffer {
        let meta = PageMeta::new(scan.keyspace.id().0, scan.page_use());
        match self.state.cache.install(node, home, page, meta) {
            Installed::Done(page) | Installed::NoRoom(page) | Installed::Stale(page) => page,
        }
    }
}
