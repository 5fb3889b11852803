"""`vmpin top`: the live view in a terminal, and its batch form.

command parses the arguments; keys, view_state and sheet are pure: keys change the state, state and usage give a sheet
of lines and rows. screen, terminal and feed are the rim.
"""
