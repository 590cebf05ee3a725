"""What travels between coordinator and sites, and what is checked before it is used."""
