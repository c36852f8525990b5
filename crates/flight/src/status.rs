//! Failures as gRPC says them.

use tapetum_service::failure::{Failure, FailureKind};
use tonic::{Code, Status};

/// A failure as clients hear of it: its sentence, and a code by which programs decide whether to ask again.
pub fn status_of(failure: &Failure) -> Status {
    let code = match failure.kind {
        FailureKind::BadRequest => Code::InvalidArgument,
        FailureKind::UnknownKeyspace => Code::NotFound,
        FailureKind::Full => Code::ResourceExhausted,
        FailureKind::Damaged => Code::DataLoss,
        FailureKind::Cancelled => Code::Cancelled,
        FailureKind::Unavailable => Code::Unavailable,
        FailureKind::OtherVersion => Code::FailedPrecondition,
        FailureKind::Store => Code::Internal,
        FailureKind::TooOld => Code::Aborted,
        FailureKind::Forbidden => Code::PermissionDenied,
    };
    Status::new(code, &*failure.message)
}

/// The failure that a server has told.
pub fn failure_of(status: &Status) -> Failure {
    let kind = match status.code() {
        Code::InvalidArgument => FailureKind::BadRequest,
        Code::PermissionDenied | Code::Unauthenticated => FailureKind::Forbidden,
        Code::NotFound => FailureKind::UnknownKeyspace,
        Code::ResourceExhausted => FailureKind::Full,
        Code::DataLoss => FailureKind::Damaged,
        Code::Cancelled => FailureKind::Cancelled,
        Code::FailedPrecondition => FailureKind::OtherVersion,
        Code::Aborted => FailureKind::TooOld,
        Code::Unavailable | Code::DeadlineExceeded | Code::Unimplemented | Code::Unknown => FailureKind::Unavailable,
        _ => FailureKind::Store,
    };
    Failure::new(kind, status.message())
}
