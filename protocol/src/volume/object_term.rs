//! The object term in the settings of a volume: its bounds, and the present term.

use std::time::Duration;

use crate::{
    lease_policy::ObjectTerm,
    reached::{Bound, reached},
};

use super::{VolumeError, VolumeSettings};

impl VolumeSettings {
    /// These settings with the object term that the leader uses at present; `None` if it grants no
    /// leases. The present term must be within the bounds of the object term, because writes wait
    /// for the upper bound. Nobody may store the returned settings: they no longer have the bounds.
    pub(crate) fn with_present_term(self, term: Option<Duration>) -> Self {
        Self { object_term: term.map_or(ObjectTerm::Zero, ObjectTerm::Fixed), ..self }
    }

    /// Checks the bounds of the object term, and that no lease delays a write for too long.
    pub(super) fn check_object_term(&self) -> Result<(), VolumeError> {
        let (least, most) = match self.object_term {
            ObjectTerm::Zero => return Ok(()),
            ObjectTerm::Fixed(term) => (term, term),
            ObjectTerm::Infinite if self.on_write.recalls() => return Ok(()),
            ObjectTerm::Infinite => (Duration::MAX, Duration::MAX),
            ObjectTerm::Adaptive { least, most, percent } => {
                if percent == 0 || percent > 100 {
                    return Err(VolumeError::Share { got: percent });
                }
                (least, most)
            }
            ObjectTerm::ByUse { least, most } => (least, most),
        };
        if least > most {
            return Err(VolumeError::AdaptiveOrder { least, most });
        }
        if !self.on_write.recalls() {
            if most > Self::WAITED_TERM_MAX {
                reached(Bound::WaitedTermMax);
            }
            let longest = self.shortest_term().min(Self::WAITED_TERM_MAX);
            return match least >= Self::TERM_MIN && most <= longest {
                true => Ok(()),
                false => Err(VolumeError::WaitTooLong { got: self.object_term, least: Self::TERM_MIN, most: longest }),
            };
        }
        if most > Self::OBJECT_TERM_MAX {
            reached(Bound::ObjectTermMax);
        }
        let got = if least < Self::TERM_MIN { least } else { most };
        if least < Self::TERM_MIN || most > Self::OBJECT_TERM_MAX {
            return Err(VolumeError::ObjectTerm { got, least: Self::TERM_MIN, most: Self::OBJECT_TERM_MAX });
        }
        Ok(())
    }
}
