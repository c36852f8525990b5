//! Gets whose values go through programs of the drive.
//!
//! ```text
//! look ─┬─ in an extension ─► extension (checks the slot) ─► the caller's programs ─► result to the host ─► answer
//!       └─ in the node, or many programs ─► a get's value ─► copied to the drive ─► the caller's programs ─┘
//! ```
//! 1. The operation is a get until its value is found, and has its place among the operations of its key until it is answered.
//! 2. An extension may be replaced while the drive reads it, so a program's failure counts when the record names the same extension again.
//! 3. The answer waits for what a get's answer waits for.

use super::context::Context;
use super::extensions::mismatched;
use super::in_hand::OpInHand;
use super::looks::deleted_by;
use super::op_state::{NearAnswer, OpStage, OrderedOp, Shown, Step};
use tapetum_base::error::Error;
use tapetum_base::request::Outcome;
use tapetum_base::request::item::ItemHead;
use tapetum_base::session::near::{NearEnd, NearSource, NearStart};
use tapetum_base::session::session_core::SessionCore;
use tapetum_drive::programs::extension::ExtensionRequest;
use tapetum_drive::{PipelineFailure, PipelineReason, PipelineStage, Returned, SourceRange};
use tapetum_kernels::ordered::extension::{ExtensionReference, crc_of_none};

/// Passes the extension of a live item to the drive's programs, if the operation is a get through programs. `None`: it is none, or its programs
/// leave no room for the one that checks the extension.
pub(super) fn compute_extension(
    (cx, core): (&Context, &mut SessionCore),
    op: &mut OpInHand<'_>,
    head: ItemHead,
    reference: ExtensionReference,
) -> Option<Step> {
    op.kept.near.as_ref().filter(|near| near.has_room_for(1))?;
    let Some(source) = source_of(cx, op, &reference)? else { return Some(mismatched(op, reference)) };
    let shown = Shown { ticket: op.kept.ticket.take(), deleted_by: deleted_by(core, op, &head), read_flash: true };
    let value = core.values.add(&[]);
    let outcome = Outcome::Value { flags: head.flags, stamp: head.stamp, expiry: head.expiry, value };
    Some(compute((cx, core), op, source, NearAnswer { shown, outcome, reference: Some(reference) }))
}

/// Passes the value with which a get would be answered to the drive's programs.
pub(super) fn compute_value(
    (cx, core): (&Context, &mut SessionCore),
    op: &mut OpInHand<'_>,
    shown: Shown,
    outcome: Outcome,
) -> Step {
    let value = outcome.value().map(|value| core.values.bytes(value).to_vec()).unwrap_or_default();
    compute((cx, core), op, NearSource::Host(value), NearAnswer { shown, outcome, reference: None })
}

/// The outer `None`: the program does not take such an extension. The inner: its slot does not exist any more.
fn source_of(cx: &Context, op: &OrderedOp, reference: &ExtensionReference) -> Option<Option<NearSource>> {
    let tree = op.kept.tree.as_ref().expect("it was attempted");
    let space = tree.extensions(reference.class(op.request.key.len())?);
    let (Some(flash), Some(salt)) = (space.flash_offset(reference.slot), space.salt(reference.slot)) else {
        return Some(None);
    };
    let request = ExtensionRequest::new(reference, crc_of_none(salt), op.request.key.len())?;
    let prefix = vec![PipelineStage::new(cx.state.programs.extension, &request.encode())?];
    let ranges = vec![SourceRange { offset: flash, bytes: request.slot_bytes() }];
    Some(Some(NearSource::Flash { ranges, prefix }))
}

fn compute(
    (cx, core): (&Context, &mut SessionCore),
    op: &mut OpInHand<'_>,
    source: NearSource,
    answer: NearAnswer,
) -> Step {
    let tag = cx.slot.tag(op.number() as u64);
    let near = op.kept.near.as_mut().expect("it is a get through programs");
    match near.start(core, tag, source) {
        NearStart::Runs => {
            op.kept.stage = OpStage::Computes(Box::new(answer));
            Step::OnItsWay
        }
        NearStart::NoRoom => Step::AwaitRoom,
        NearStart::Failed(error) => Step::Fail(error),
    }
}

/// Called when the drive has run the programs.
pub(super) fn computed(core: &mut SessionCore, op: &mut OpInHand<'_>, answer: NearAnswer, returned: Returned) -> Step {
    let near = op.kept.near.as_mut().expect("it is a get through programs");
    let NearAnswer { shown, mut outcome, reference } = answer;
    match (near.ended(core, returned), reference) {
        (NearEnd::Value(result), _) => {
            op.kept.near = None;
            outcome.value_mut().into_iter().for_each(|value| *value = result);
            Step::Answer(shown, outcome)
        }
        (NearEnd::NoRoom, _) => Step::AwaitRoom,
        (NearEnd::Failed(error), Some(reference)) if is_of_program(&error) => {
            match op.kept.mismatched.replace(reference) == Some(reference) {
                true => Step::Fail(error),
                false => Step::Again,
            }
        }
        (NearEnd::Failed(error), _) => Step::Fail(error),
        (NearEnd::Damaged, Some(reference)) => mismatched(op, reference),
        (NearEnd::Damaged, None) => unreachable!("the host's bytes have no stages before the caller's"),
    }
}

/// Whether a program of the caller's failed, which may be for the bytes of another extension.
fn is_of_program(error: &Error) -> bool {
    matches!(
        error,
        Error::Pipeline(PipelineFailure { reason: PipelineReason::Program | PipelineReason::OutputTooLong, .. })
    )
}
