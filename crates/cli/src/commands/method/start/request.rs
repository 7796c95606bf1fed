//! A test method with its arguments of the command line, and access to the arguments that all methods share.

use crate::args::{
    BisectArgs, CompareArgs, ConvergenceArgs, LossShareArgs, MethodRunOptions, MethodTraffic, MlrsearchArgs,
    Rfc2544Args, SizeArg,
};

/// A test method, with its arguments of the command line.
pub(crate) enum MethodRequest {
    Rfc2544(Box<Rfc2544Args>),
    Mlrsearch(Box<MlrsearchArgs>),
    Bisect(Box<BisectArgs>),
    Convergence(Box<ConvergenceArgs>),
    Compare(Box<CompareArgs>),
    LossShare(Box<LossShareArgs>),
}

impl MethodRequest {
    pub(super) const fn traffic(&self) -> &MethodTraffic {
        match self {
            Self::Rfc2544(arguments) => &arguments.traffic,
            Self::Mlrsearch(arguments) => &arguments.traffic,
            Self::Bisect(arguments) => &arguments.traffic,
            Self::Convergence(arguments) => &arguments.traffic,
            Self::Compare(arguments) => &arguments.traffic,
            Self::LossShare(arguments) => &arguments.traffic,
        }
    }

    /// Size of the frames that the user named; `None` if the user named none, or if the method has a list of sizes.
    pub(super) const fn frame_size(&self) -> Option<SizeArg> {
        match self {
            Self::Rfc2544(_) => None,
            Self::Mlrsearch(arguments) => arguments.frames.size,
            Self::Bisect(arguments) => arguments.frames.size,
            Self::Convergence(arguments) => arguments.frames.size,
            Self::Compare(arguments) => arguments.frames.size,
            Self::LossShare(arguments) => arguments.frames.size,
        }
    }

    pub(super) const fn terms(&self) -> &MethodRunOptions {
        match self {
            Self::Rfc2544(arguments) => &arguments.terms,
            Self::Mlrsearch(arguments) => &arguments.terms,
            Self::Bisect(arguments) => &arguments.terms,
            Self::Convergence(arguments) => &arguments.terms,
            Self::Compare(arguments) => &arguments.terms,
            Self::LossShare(arguments) => &arguments.terms,
        }
    }
}
