//! Submits requests to the store: the parts of jobs, each as one or more requests.

use tapetum::Expiry;
use tapetum::{BLOCK_BYTES, BlockChange, BlockPiece, Condition, Patch, Request};

use super::Transmission;
use super::completing::count;
use crate::doors::connection::{Admission, Client};
use crate::doors::context::Context;
use crate::doors::nbd::exports::Export;
use crate::doors::nbd::jobs::{Job, Part, PartKind, Task};
use crate::doors::nbd::protocol::{errors, reply};

/// Blocks that a trim looks up before others get their turn: some hundred microseconds.
const LOOKS_MAX: usize = 1024;
/// Lookups of one block status, for one block or a run of absent ones each. The client asks again for the rest.
const STATUS_LOOKS_MAX: usize = 8192;

const BLOCK: u64 = BLOCK_BYTES as u64;

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

impl Transmission {
    /// Adds a part of a job that is charged with `held_bytes`.
    pub(super) fn add_part(&mut self, job: usize, piece: BlockPiece, kind: PartKind, held_bytes: usize) -> usize {
        self.jobs.get_mut(job).parts += 1;
        self.held_bytes += held_bytes;
        self.parts.add(Part { job, piece, kind, charge_bytes: 0, held_bytes })
    }

    /// Puts the value of a part.
    pub(super) fn put(
        &mut self,
        part: usize,
        value: &[u8],
        admission: Admission,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) {
        let key = self.export.device.key(self.parts.get(part).piece.block);
        let put = Request::Put { key: &key, value, flags: 0, expiry: Expiry::NONE, condition: Condition::Always };
        self.submit(part, put, admission, client, cx);
    }

    /// Begins the change of a part of a block.
    pub(super) fn change(
        &mut self,
        job: usize,
        piece: BlockPiece,
        patch: Patch,
        admission: Admission,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) {
        let change = BlockChange::new(piece.within.clone(), patch);
        let part = self.add_part(job, piece, PartKind::Change(change), admission.charge_bytes);
        client.keep(admission, cx.budget);
        self.export.counts[cx.worker].changes_part();
        self.changing.push_back(part);
    }

    pub(super) fn submit(
        &mut self,
        part: usize,
        request: Request<'_>,
        admission: Admission,
        client: &mut Client,
        cx: &mut Context<'_>,
    ) {
        self.parts.get_mut(part).charge_bytes = admission.charge_bytes;
        self.pending += 1;
        client.submit(part as u32, self.export.keyspace, request, admission, cx);
    }

    /// Submits the next request of a change. Returns whether it could.
    pub(super) fn go_on_changing(&mut self, client: &mut Client, cx: &mut Context<'_>) -> bool {
        let Some(&number) = self.changing.front() else { return false };
        let load = self.load();
        let part = self.parts.get(number);
        if self.jobs.get(part.job).error != 0 {
            self.changing.pop_front();
            self.end_part(number, client, cx);
            return true;
        }
        let key = self.export.device.key(part.piece.block);
        let value_bytes = part.is_get().then_some(BLOCK_BYTES);
        let Some(admission) = client.admit_part(load, value_bytes, cx) else { return false };
        self.changing.pop_front();
        let part = self.parts.get_mut(number);
        part.charge_bytes = admission.charge_bytes;
        self.pending += 1;
        let PartKind::Change(change) = &part.kind else { unreachable!("only changes go on") };
        client.submit(number as u32, self.export.keyspace, change.request(&key), admission, cx);
        true
    }

    /// Hands out a part of the job whose turn it is. Returns whether it could.
    pub(super) fn work(&mut self, client: &mut Client, cx: &mut Context<'_>) -> bool {
        let Some(&number) = self.working.front() else { return false };
        let job = self.jobs.get(number);
        let worked = match job.task {
            _ if job.is_handed_out() && job.needs_sync && job.error == 0 => self.sync(number, client, cx),
            _ if job.is_handed_out() => Some(()),
            Task::Read { .. } => self.read(number, client, cx),
            Task::Trim => self.free(number, client, cx),
            Task::Zero { is_allocated } if is_allocated || !job.piece().is_whole() => self.zero(number, client, cx),
            Task::Zero { .. } => self.free(number, client, cx),
            Task::Status { is_of_one } => {
                self.tell_statuses(number, is_of_one, client, cx);
                return true;
            }
            Task::Write | Task::Flush => unreachable!("both are handed out"),
        };
        if worked.is_none() {
            return false;
        }
        // The next job's turn.
        self.working.pop_front();
        match self.jobs.get(number).is_handed_out() {
            true => self.settle(number, client, cx),
            false => self.working.push_back(number),
        }
        true
    }

    /// Submits the barrier with which a job ends.
    pub(super) fn sync(&mut self, number: usize, client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let admission = client.admit_part(self.load(), None, cx)?;
        let job = self.jobs.get_mut(number);
        job.needs_sync = false;
        // Writes to a store that was withdrawn meanwhile may be lost: for a flush all answered ones, for other jobs their own.
        let told = match job.task {
            Task::Flush => std::mem::replace(&mut self.exchanges_told, cx.seat.exchanges()),
            _ => job.exchanges,
        };
        if told != cx.seat.exchanges() && !self.is_durable_at_once {
            job.fail(errors::IO);
            return Some(());
        }
        let part = self.add_part(number, BlockPiece { block: 0, within: 0..0 }, PartKind::Sync, 0);
        self.parts.get_mut(part).charge_bytes = admission.charge_bytes;
        self.pending += 1;
        client.submit_sync(part as u32, cx);
        Some(())
    }

    /// Submits the gets of a read up to the end of a group of blocks: those behind the first share its read of flash.
    pub(super) fn read(&mut self, number: usize, client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        // The client is not blocked, because its later requests may pass this read.
        if self.load().pending >= cx.limits.connection_requests / 4 * 3 {
            return None;
        }
        loop {
            let admission = client.admit_part(self.load(), Some(BLOCK_BYTES), cx)?;
            let piece = self.next_piece(number);
            let key = self.export.device.key(piece.block);
            let part = self.add_part(number, piece, PartKind::Read, 0);
            self.submit(part, Request::Get { key: &key }, admission, client, cx);
            let job = self.jobs.get(number);
            if job.is_handed_out() || self.export.device.is_first_of_group(job.piece().block) {
                return Some(());
            }
        }
    }

    /// Takes a job's next piece.
    pub(super) fn next_piece(&mut self, number: usize) -> BlockPiece {
        let job = self.jobs.get_mut(number);
        let piece = job.piece();
        job.at += piece.within.len() as u64;
        piece
    }

    /// Deletes the next block that may exist.
    pub(super) fn free(&mut self, number: usize, client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        let mut looks = 0;
        while looks < LOOKS_MAX {
            let job = self.jobs.get(number);
            if job.is_handed_out() || !job.piece().is_whole() {
                return Some(());
            }
            let blocks = job.piece().block..job.end / BLOCK;
            let absent = cx.seat.absent_blocks(self.export.keyspace, self.export.device, blocks, LOOKS_MAX - looks);
            looks += absent.looks;
            if absent.blocks > 0 {
                // The deletions of absent blocks may not be durable yet.
                let job = self.jobs.get_mut(number);
                job.needs_sync |= self.is_durable_at_once;
                job.at += absent.blocks * BLOCK;
                continue;
            }
            looks += 1;
            let key = self.export.device.key(job.piece().block);
            if !cx.seat.has_probably(self.export.keyspace, &key) {
                // The deletion of this block may not be durable yet.
                self.jobs.get_mut(number).needs_sync |= self.is_durable_at_once;
                self.next_piece(number);
                continue;
            }
            let admission = client.admit_part(self.load(), None, cx)?;
            let piece = self.next_piece(number);
            let part = self.add_part(number, piece, PartKind::Delete, 0);
            self.submit(part, Request::Delete { key: &key, stamp: None }, admission, client, cx);
            return Some(());
        }
        self.wants_turn = true;
        Some(())
    }

    /// Writes zeros to the next piece.
    pub(super) fn zero(&mut self, number: usize, client: &mut Client, cx: &mut Context<'_>) -> Option<()> {
        if self.jobs.get(number).piece().is_whole() {
            let admission = client.admit_part(self.load(), None, cx)?;
            let piece = self.next_piece(number);
            let part = self.add_part(number, piece, PartKind::Put, 0);
            self.put(part, &ZEROS, admission, client, cx);
            return Some(());
        }
        let admission = client.admit(self.load_beside(cx.limits), false, BLOCK_BYTES, cx)?;
        let piece = self.next_piece(number);
        let Task::Zero { is_allocated } = self.jobs.get(number).task else { unreachable!("zeros are wanted") };
        let patch = if is_allocated { Patch::Bytes(vec![0; piece.within.len()]) } else { Patch::Zeros };
        self.change(number, piece, patch, admission, client, cx);
        Some(())
    }

    /// Length and status of the next extent of a block status.
    fn next_status(&self, job: &Job, looks: &mut usize, cx: &Context<'_>) -> (u32, u32) {
        let (piece, Export { keyspace, device, .. }) = (job.piece(), &self.export);
        let blocks = piece.block..job.end.div_ceil(BLOCK);
        let absent = cx.seat.absent_blocks(*keyspace, *device, blocks, STATUS_LOOKS_MAX - *looks);
        *looks += absent.looks + 1;
        if absent.blocks > 0 {
            let end = ((piece.block + absent.blocks) * BLOCK).min(job.end);
            // The length fits, because that of a request has 32 bits.
            return ((end - job.at) as u32, reply::STATUS_HOLE);
        }
        let is_there = cx.seat.has_probably(*keyspace, &device.key(piece.block));
        (piece.within.len() as u32, if is_there { 0 } else { reply::STATUS_HOLE })
    }

    /// Answers a block status, for as many blocks as allowed.
    pub(super) fn tell_statuses(&mut self, number: usize, is_of_one: bool, client: &mut Client, cx: &mut Context<'_>) {
        self.working.pop_front();
        let mut job = self.jobs.take(number);
        let mut extents: Vec<(u32, u32)> = Vec::new();
        let mut looks = 0;
        while !job.is_handed_out() && looks < STATUS_LOOKS_MAX {
            let (bytes, status) = self.next_status(&job, &mut looks, cx);
            match extents.last_mut() {
                Some((length, last)) if *last == status => *length += bytes,
                Some(_) if is_of_one => break,
                _ => extents.push((bytes, status)),
            }
            job.at += u64::from(bytes);
        }
        count(&job, &self.export, cx);
        client.out.append(cx.pool, |out| reply::push_statuses(out, job.cookie, &extents));
        self.wants_turn = true;
    }
}
