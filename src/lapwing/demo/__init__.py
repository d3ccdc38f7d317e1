"""What ``lapwing demo`` runs: real digits with three of them unseen, and a curve with a gap."""
