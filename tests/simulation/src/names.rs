//! Enums whose variants have names in options and messages.

/// Defines such an enum.
macro_rules! named {
    ($(#[$about:meta])* pub enum $Type:ident { $($(#[$note:meta])* $Variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        pub enum $Type {
            $($(#[$note])* $Variant,)*
        }

        impl $Type {
            /// All of them.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$Variant),*];

            /// The name in options and messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)*
                }
            }

            /// The one with this name.
            pub fn of_name(name: &str) -> Result<Self, String> {
                let names = || Self::ALL.map(Self::name).join(", ");
                Self::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| format!("expected one of {}", names()))
            }
        }
    };
}

pub(crate) use named;
