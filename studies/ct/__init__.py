"""Studies of tomography: error bars of an image, and the angles to measure next (Antorán 2024, chapter 7)."""
