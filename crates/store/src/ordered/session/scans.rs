//! Scans: the items of a range of keys in ascending or descending order, a part at a time.
//!
//! ```text
//! start ─► node of the bound ─┬─ cached ─► program scans ─┬─ enough ──────────────► held until durable ─► part, and where to go on
//!              ▲              └─ not ─► read and scanned ─┘
//!              └──────────── the next node, from the fence of this one ◄──┘
//! ```
//! A part shows each node as it was at one moment.
//!
//! After a node was scanned, its values in extensions are read one by one. If one was replaced, the scan goes back to its key.
//!
//! The pages of the next nodes are read ahead ([`super::scan_ahead`]). Pages read by a short scan go into the cache; those of a long scan do not, as
//! a range that is read once would evict pages that others use.

use super::context::{Context, OrderedMeans};
use super::extension_read::{ExtensionRead, ExtensionStep, ReadOf};
use super::extensions::{damaged_extension, piece_tag};
use super::fetches::{arguments_of_flash, read_error};
use super::looks::{arguments, failed_at};
use super::merges::{ALL_DEAD, Merges};
use super::op_state::TakenPage;
use super::scan_ahead::{AheadRead, AheadReads, AheadState, ScanAhead, page_range, read_ahead};
use super::scan_op::{OutsideItem, ScanOp, ScanStage, bound, is_crossed};
use super::{TAG_SCAN, scratch};
use crate::ordered::cache::page_meta::{PageMeta, PageUse};
use crate::ordered::cache::{Installed, PageLook, lost};
use crate::ordered::node_table::{HomedNode, NodeId};
use crate::ordered::search::AnchorKey;
use std::collections::VecDeque;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::keyspace::states::KeyspaceRef;
use tapetum_base::log::Sync;
use tapetum_base::media::piece_transfer::ReturnedPiece;
use tapetum_base::request::key_range::{KeyBound, KeyRange, ScanPart, ScanReply};
use tapetum_base::session::engine_session::EngineWait;
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::node::{NodeArguments, NodeFlags, NodeScanRequest};
use tapetum_drive::{Lease, LocalBuffer, Purpose, Returned, fail_point};
use tapetum_kernels::ordered::{NODE_BYTES, NODE_KEY_BYTES_MAX};

/// A scan that a step works on, and its number.
struct ScanInHand<'a> {
    number: usize,
    scan: &'a mut ScanOp,
}

/// The next action on a scan.
enum ScanStep {
    /// It continues at this stage.
    At(ScanStage),
    End(Result<ScanPart, Error>),
}

#[derive(Default)]
pub(super) struct Scans {
    scans: Vec<Option<Box<ScanOp>>>,
    free: Vec<usize>,
    aheads: AheadReads,
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

    /// Whether some wait for other threads.
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

    /// Called when pages were read ahead, or the read failed.
    pub fn was_read_ahead(&mut self, number: usize, returned: Returned) {
        self.aheads.was_read(number, returned);
        for scan in self.scans.iter_mut().flatten().filter(|scan| matches!(scan.stage, ScanStage::AwaitsAhead)) {
            scan.stage = ScanStage::Begins;
        }
    }

    /// The number of page reads in flight.
    #[cfg(test)]
    pub fn reads(&self) -> usize {
        let of_scans = self.scans.iter().flatten().filter(|scan| matches!(scan.stage, ScanStage::Reads(..))).count();
        of_scans + self.aheads.count()
    }

    /// Starts a scan of up to `items_max` items. Its first part comes as a reply with `token`.
    pub fn start(&mut self, keyspace: KeyspaceRef, token: u64, range: KeyRange, items_max: usize) {
        if range.from.key().len().max(range.to.key().len()) > NODE_KEY_BYTES_MAX {
            let error = Error::KeyTooLong { limit_bytes: NODE_KEY_BYTES_MAX };
            return self.replies.push(ScanReply { token, part: Err(error) });
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
        match self.free.pop() {
            Some(number) => self.scans[number] = Some(scan),
            None => self.scans.push(Some(scan)),
        }
    }

    /// Takes the answers of finished scans.
    pub fn take_replies(&mut self, replies: &mut Vec<ScanReply>) {
        replies.append(&mut self.replies);
    }

    /// Carries out a step of a scan: it stays in its slot, at another stage, or ends with its answer.
    fn advance(&mut self, number: usize, step: ScanStep) {
        let Some(scan) = &mut self.scans[number] else { unreachable!("scan {number} is in its place") };
        match step {
            ScanStep::At(stage) => scan.stage = stage,
            ScanStep::End(part) => {
                let token = scan.token;
                self.scans[number] = None;
                self.free.push(number);
                self.replies.push(ScanReply { token, part });
            }
        }
    }

    /// Attempts the scans that can continue, and answers those whose part is durable.
    pub fn attempt(&mut self, (cx, core): OrderedMeans<'_>) {
        for number in 0..self.scans.len() {
            let Some(scan) = &mut self.scans[number] else { continue };
            if matches!(scan.stage, ScanStage::Begins) {
                let step = attempt((cx, core), ScanInHand { number, scan }, &mut self.aheads);
                self.advance(number, step);
            }
            let Some(scan) = &mut self.scans[number] else { continue };
            if matches!(scan.stage, ScanStage::Holds)
                && let Some(part) = release(core, scan)
            {
                self.advance(number, ScanStep::End(part));
            }
        }
    }

    /// Ends the waiting scans with an error.
    pub fn fail_waiting(&mut self, error: &Error) {
        for number in 0..self.scans.len() {
            let waits = |scan: &ScanOp| matches!(scan.stage, ScanStage::Begins | ScanStage::Holds);
            if self.scans[number].as_deref().is_some_and(waits) {
                self.advance(number, ScanStep::End(Err(error.clone())));
            }
        }
    }

    /// Takes the completion of a scan's command.
    pub fn complete(&mut self, (cx, core): OrderedMeans<'_>, merges: &mut Merges, number: usize, piece: ReturnedPiece) {
        let Some(scan) = &mut self.scans[number] else { unreachable!("scan {number} has a command on its way") };
        let step = match std::mem::replace(&mut scan.stage, ScanStage::Begins) {
            ScanStage::ReadsExtension(outside, read) => {
                was_read_outside((cx, core), ScanInHand { number, scan }, outside, read, piece)
            }
            stage => was_scanned((cx, core), merges, scan, stage, piece.returned),
        };
        self.advance(number, step);
    }
}

/// Ends a scan whose part is durable.
fn release(core: &SessionCore, scan: &mut ScanOp) -> Option<Result<ScanPart, Error>> {
    let base = &core.base;
    let waits = base.log.sync() == Sync::Always;
    scan.tickets.retain(|ticket| waits && !ticket.is_done());
    let is_marked = base.log.may_acknowledge(scan.deleted_by);
    if !is_marked {
        base.log.advance(true, base.drive.env().now_us());
    }
    if scan.tickets.is_empty() && is_marked {
        let rest = (!scan.is_over).then(|| std::mem::take(&mut scan.range));
        return Some(Ok(ScanPart { items: std::mem::take(&mut scan.items), rest }));
    }
    base.log.poisoned().err().map(Err)
}

/// Finds the node in which a scan continues, and scans it.
fn attempt(
    (cx, core): OrderedMeans<'_>,
    ScanInHand { number, scan }: ScanInHand<'_>,
    aheads: &mut AheadReads,
) -> ScanStep {
    let found = core.base.refuse_dropped(scan.keyspace).and_then(|()| cx.tree_of(scan.keyspace.id()));
    let tree = match found {
        Ok(tree) => tree,
        Err(error) => return ScanStep::End(Err(error)),
    };
    if !cx.has_credit(core) {
        return ScanStep::At(ScanStage::Begins);
    }
    if let Some(outside) = scan.outside.pop_front() {
        return read_outside((cx, core), ScanInHand { number, scan }, tree, outside);
    }
    if scan.has_enough() {
        return ScanStep::At(ScanStage::Holds);
    }
    let node = scan_node(cx, tree, &scan.range);
    let looked = cx.state.cache.take(node, scan.keyspace.id().0, scan.page_use());
    let ahead = match looked {
        PageLook::Absent(home) => scan.ahead.find(core, node, home),
        _ => None,
    };
    read_ahead((cx, core), tree, scan, aheads);
    let in_hand = ScanInHand { number, scan };
    match (looked, ahead) {
        (PageLook::Taken(page), _) => look((cx, core), in_hand, TakenPage { node, page }),
        (PageLook::Absent(home), Some(read)) => look_ahead((cx, core), in_hand, tree, HomedNode { node, home }, read),
        (PageLook::Absent(home), None) => read((cx, core), in_hand, tree, HomedNode { node, home }),
        (PageLook::Busy | PageLook::Gone, _) => again(cx),
        (PageLook::Lost, _) => ScanStep::End(Err(lost(node))),
    }
}

/// Lets a scan continue in this poll.
fn again(cx: &mut Context) -> ScanStep {
    cx.again.tries = true;
    ScanStep::At(ScanStage::Begins)
}

/// Lets a scan continue when there is memory.
fn starves(cx: &mut Context) -> ScanStep {
    cx.again.wants_room = true;
    ScanStep::At(ScanStage::Begins)
}

/// Scans a cached page.
fn look(
    (cx, core): OrderedMeans<'_>,
    ScanInHand { number, scan }: ScanInHand<'_>,
    TakenPage { node, page }: TakenPage,
) -> ScanStep {
    let Some(mut scratch) = cx.take_scratch(core) else {
        cx.state.cache.give_back(node, page, |_| ());
        return starves(cx);
    };
    scan_parameters((cx, core), scan, arguments(NodeFlags::NONE));
    let program = cx.state.programs.scan;
    let operation = scratch::look(&core.queue, Purpose::Scan, program, &cx.parameters, page.range(), &mut scratch);
    cx.submit_at_page(core, TAG_SCAN | number as u64, Purpose::Scan, operation, Lease::Buffers([page, scratch]));
    ScanStep::At(ScanStage::Looks(node))
}

/// Reads a page and scans it.
fn read(
    (cx, core): OrderedMeans<'_>,
    ScanInHand { number, scan }: ScanInHand<'_>,
    tree: usize,
    HomedNode { node, home }: HomedNode,
) -> ScanStep {
    let nodes = cx.trees[tree].tree.nodes.clone();
    let arguments = arguments_of_flash(&nodes, home, NodeFlags::NONE);
    let buffers = cx.take_both(core);
    let (Some(arguments), Some((page, mut scratch))) = (arguments, buffers) else { return starves(cx) };
    scan_parameters((cx, core), scan, arguments);
    let (program, flash) = (cx.state.programs.scan, nodes.map().flash(home.slot));
    let operation =
        scratch::read_and_look(&core.queue, Purpose::Scan, program, flash, &cx.parameters, &page, &mut scratch);
    cx.submit(core, TAG_SCAN | number as u64, Purpose::Scan, operation, Lease::Buffers([page, scratch]));
    ScanStep::At(ScanStage::Reads(node, home))
}

/// Scans a page that was read ahead, or waits for it.
fn look_ahead(
    (cx, core): OrderedMeans<'_>,
    ScanInHand { number, scan }: ScanInHand<'_>,
    tree: usize,
    HomedNode { node, home }: HomedNode,
    read: Arc<AheadRead>,
) -> ScanStep {
    let page = match read.take() {
        AheadState::Here(page) => page,
        AheadState::OnItsWay => return ScanStep::At(ScanStage::AwaitsAhead),
        AheadState::Gone => {
            // A read of the page by itself reports the error.
            scan.ahead = ScanAhead::default();
            return again(cx);
        }
    };
    let arguments = arguments_of_flash(&cx.trees[tree].tree.nodes, home, NodeFlags::NONE);
    let scratch = cx.take_scratch(core);
    let (Some(arguments), Some(mut scratch)) = (arguments, scratch) else {
        read.give_back(page);
        return starves(cx);
    };
    scan_parameters((cx, core), scan, arguments);
    let (program, input) = (cx.state.programs.scan, page_range(&page, read.page_at(home.slot)));
    let operation = scratch::look(&core.queue, Purpose::Scan, program, &cx.parameters, input, &mut scratch);
    cx.submit_at_page(core, TAG_SCAN | number as u64, Purpose::Scan, operation, Lease::Buffers([page, scratch]));
    ScanStep::At(ScanStage::LooksAhead(node, home, read))
}

/// The node in which the next item of a range may be.
fn scan_node(cx: &mut Context, tree: usize, range: &KeyRange) -> NodeId {
    let (search, anchor) = (&mut cx.trees[tree].search, &mut cx.anchor);
    let found = match (range.is_reverse, &range.to) {
        (false, _) => search.floor(range.from.key(), anchor),
        (true, KeyBound::Unbounded) => search.last(anchor),
        (true, KeyBound::Included(key)) => search.floor(key, anchor),
        (true, KeyBound::Excluded(key)) => {
            // The greatest anchor below the bound: keys right below the bound are in its node.
            *anchor = AnchorKey::of(key);
            search.previous(anchor).unwrap_or_else(|| search.floor(b"", anchor))
        }
    };
    NodeId(found as u32)
}

fn scan_parameters((cx, core): (&mut Context, &SessionCore), scan: &mut ScanOp, arguments: NodeArguments) {
    let flags = if scan.range.is_reverse { NodeFlags::REVERSE } else { NodeFlags::NONE };
    let (watermark, now_ms) = (core.base.keyspaces.watermark(scan.keyspace.id()), core.base.now_ms());
    let now_ms = if fail_point!(OrderedScanExpired) { 0 } else { now_ms };
    scan.deleted_by = core.base.keyspaces.mark(scan.keyspace.id()).watermark;
    let arguments = NodeArguments { watermark, now_ms, flags: arguments.flags.with(flags), ..arguments };
    let limit = (scan.items_max - scan.items.len()).min(usize::from(u16::MAX)) as u16;
    let request = NodeScanRequest { from: bound(&scan.range.from), to: bound(&scan.range.to), limit };
    request.encode(&arguments, &mut cx.parameters);
}

/// Reads the extension of an item.
fn read_outside(
    (cx, core): OrderedMeans<'_>,
    ScanInHand { number, scan }: ScanInHand<'_>,
    tree: usize,
    outside: OutsideItem,
) -> ScanStep {
    let tree = &cx.trees[tree].tree;
    let key_bytes = scan.items[outside.place].key.len();
    let read = ExtensionRead::of(&outside.reference, key_bytes, |class| tree.extensions(class));
    let Some(mut read) = read else { return scan_mismatched(cx, scan, outside) };
    if read.begin(core, Purpose::Scan, piece_tag(cx.slot.tag(TAG_SCAN | number as u64))) {
        return ScanStep::At(ScanStage::ReadsExtension(outside, Box::new(read)));
    }
    scan.outside.push_front(outside);
    starves(cx)
}

fn was_read_outside(
    (cx, core): OrderedMeans<'_>,
    ScanInHand { number, scan }: ScanInHand<'_>,
    outside: OutsideItem,
    mut read: Box<ExtensionRead>,
    piece: ReturnedPiece,
) -> ScanStep {
    let OutsideItem { place, value_bytes, .. } = outside;
    let of = ReadOf { key: &scan.items[place].key, value_bytes, purpose: Purpose::Scan };
    let value = match read.completed(core, of, piece, piece_tag(cx.slot.tag(TAG_SCAN | number as u64))) {
        ExtensionStep::OnItsWay => return ScanStep::At(ScanStage::ReadsExtension(outside, read)),
        ExtensionStep::Another => return scan_mismatched(cx, scan, outside),
        ExtensionStep::Failed(failed) => {
            return ScanStep::End(Err(Error::of_command(core.queue.drive(), "read", &failed)));
        }
        ExtensionStep::Value(value) => value,
    };
    scan.mismatched = None;
    scan.items[outside.place].value = value;
    again(cx)
}

/// Lets a scan go back to an item that was replaced meanwhile. If it names the same extension as before, the store is damaged.
fn scan_mismatched(cx: &mut Context, scan: &mut ScanOp, outside: OutsideItem) -> ScanStep {
    if scan.mismatched.replace(outside.reference) == Some(outside.reference) {
        return ScanStep::End(Err(damaged_extension(&outside.reference)));
    }
    scan.go_back_to(outside.place);
    again(cx)
}

/// Called when a program has scanned a page, or failed.
fn was_scanned(
    (cx, core): OrderedMeans<'_>,
    merges: &mut Merges,
    scan: &mut ScanOp,
    stage: ScanStage,
    Returned { completion, lease }: Returned,
) -> ScanStep {
    let Lease::Buffers([page, scratch]) = lease else { unreachable!("it was lent both") };
    let at = if let ScanStage::LooksAhead(_, home, read) = &stage { read.page_at(home.slot) } else { 0 };
    let gone_on = match completion.is_success() {
        true => scan.go_on(core, &page, at, &scratch, completion.result),
        false => None,
    };
    cx.give_scratch(core, scratch);
    if matches!(stage, ScanStage::Looks(_) | ScanStage::LooksAhead(..)) {
        cx.page_returned();
    }
    let of_flash = match stage {
        ScanStage::Looks(node) => {
            let ticket = cx.state.cache.give_back(node, page, |meta| meta.wait_for(meta.changed_stamp));
            scan.tickets.extend(ticket.filter(|_| !fail_point!(OrderedScanUndurable)));
            if gone_on.is_none() {
                return ScanStep::End(Err(failed_at(node, completion.status)));
            }
            None
        }
        ScanStage::LooksAhead(node, home, read) => {
            let keeps = gone_on.is_some() && scan.page_use() == PageUse::ByKey;
            let copy = if keeps { copy_of_page(cx, core, &page, at) } else { None };
            read.give_back(page);
            Some((node, home, copy))
        }
        ScanStage::Reads(node, home) => Some((node, home, Some(page))),
        ScanStage::Begins | ScanStage::AwaitsAhead | ScanStage::ReadsExtension(..) | ScanStage::Holds => {
            unreachable!("it has a command for a node on its way")
        }
    };
    if let Some((node, home, page)) = of_flash {
        let is_current = cx.state.cache.is_current(node, home);
        if let Some(page) = page {
            let keeps = gone_on.is_some() && scan.page_use() == PageUse::ByKey;
            let page = if keeps { keep_page(cx, scan, HomedNode { node, home }, page) } else { page };
            cx.give_page(page);
        }
        if !is_current {
            // The page is outdated.
            scan.take_back(gone_on.as_ref());
            return again(cx);
        }
        if gone_on.is_none() {
            return ScanStep::End(Err(read_error(core, HomedNode { node, home }, &completion)));
        }
    }
    let dead = gone_on.and_then(|passed| scan.step(passed));
    dead.iter().for_each(|key| merges.wish(cx, scan.keyspace.id(), key, ALL_DEAD));
    again(cx)
}

/// Copies one of the pages that were read together into a buffer of its own. The host has seen all of it by now.
fn copy_of_page(cx: &Context, core: &SessionCore, pages: &LocalBuffer, at: usize) -> Option<LocalBuffer> {
    let mut copy = cx.take_page(core)?;
    let into = core.queue.fill(Purpose::Scan, &mut copy, 0..NODE_BYTES);
    into.copy_from_slice(&pages.bytes()[at..at + NODE_BYTES]);
    Some(copy)
}

/// Installs a scanned page in the cache, if it is current and there is a place. Returns a buffer in exchange.
fn keep_page(cx: &Context, scan: &ScanOp, HomedNode { node, home }: HomedNode, page: LocalBuffer) -> LocalBuffer {
    let meta = PageMeta::new(scan.keyspace.id().0, scan.page_use());
    match cx.state.cache.install(node, home, page, meta) {
        Installed::Done(page) | Installed::NoRoom(page) | Installed::Stale(page) => page,
    }
}
