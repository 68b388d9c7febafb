"""The rooms: all the thinking, as plain generators that know no world."""
